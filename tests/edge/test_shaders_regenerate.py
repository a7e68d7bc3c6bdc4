"""The committed SPIR-V is what the pinned compiler makes of the committed GLSL, byte by byte."""

import pytest

from helpers.edge import shaders, spirv

COMMITTED_WITH = "glslang 13.1.1"


@pytest.mark.parametrize("name", shaders.names())
def test_a_module_is_what_the_pinned_compiler_makes(name):
    if COMMITTED_WITH not in spirv.tool_versions():
        pytest.skip(f"the modules were compiled with {COMMITTED_WITH}, here is {spirv.tool_versions()}")
    assert spirv.compile_glsl(shaders.glsl(name)) == shaders.spirv(name), (
        "python -c 'from helpers.edge import shaders; shaders.regenerate()'"
    )


@pytest.mark.parametrize("name", shaders.names())
def test_a_module_validates_and_its_constants_have_defaults(name):
    spirv.validate(shaders.spirv(name))
    if "cooperative" in name:
        spirv.validate(shaders.spirv(name), "vulkan1.3")
    found = spirv.reflect(shaders.spirv(name))
    assert found.entry == "main" and found.bindings == tuple(range(len(found.bindings)))
    x, y, z = found.local_size
    assert x * y * z <= 256 and z <= 64  # what SwiftShader takes, and with it every device of today


def test_every_source_has_its_module_and_the_other_way_round():
    modules = {path.stem for path in shaders.FOLDER.glob("*.spv")}
    assert modules == set(shaders.names())


def test_regenerate_writes_only_what_changed(tmp_path, monkeypatch):
    for suffix in ("comp", "spv"):
        path = shaders.FOLDER / f"saxpy.{suffix}"
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(shaders, "FOLDER", tmp_path)
    assert shaders.regenerate() == ()
    (tmp_path / "saxpy.comp").write_text(shaders.glsl("saxpy").replace("alpha * x[i] + y[i]", "alpha * y[i]"))
    assert shaders.regenerate() == ("saxpy",) and shaders.regenerate() == ()
