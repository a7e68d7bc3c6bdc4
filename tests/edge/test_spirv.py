import re
import struct
import subprocess
import sysconfig
from pathlib import Path

import pytest

from helpers.edge import shaders, spirv
from helpers.edge.spirv_glossary import explain

PUSH_TYPES = """#version 450
layout(local_size_x = 8, local_size_y = 4, local_size_z = 2) in;
struct Pair { vec2 a; uint b; };
layout(constant_id = 3) const int COUNT = -2;
layout(constant_id = 5) const bool FLAG = true;
layout(set = 0, binding = 4) buffer Y { float y[]; };
layout(set = 0, binding = 1) readonly buffer X { vec4 x[]; };
layout(push_constant) uniform P { vec3 v; float f[5]; Pair pairs[2]; mat4 m; };
void main() { y[0] = x[0].x + v.x + f[1] + pairs[1].a.x + m[0][0] + float(COUNT) + (FLAG ? 1.0 : 0.0); }
"""


def test_reflection_agrees_with_the_disassembly():
    module = spirv.compile_glsl(PUSH_TYPES)
    found, text = spirv.reflect(module), spirv.disassemble(module)
    bindings = sorted(int(number) for number in re.findall(r"Binding (\d+)", text))
    assert found.bindings == tuple(bindings) == (1, 4)
    assert set(found.constants) == {int(number) for number in re.findall(r"SpecId (\d+)", text)}
    assert found.constants == {3: -2 & 0xFFFFFFFF, 5: 1}
    size = re.search(r"LocalSize (\d+) (\d+) (\d+)", text)
    assert found.local_size == tuple(map(int, size.groups())) == (8, 4, 2)


def test_push_constants_are_as_large_as_the_layout_rules_say():
    """std430: vec3 at 0, float[5] at 12 to 32, Pair (16 bytes) twice at 32, mat4 at 64 to 128."""
    assert spirv.reflect(spirv.compile_glsl(PUSH_TYPES)).push_bytes == 128


def test_a_specialization_constant_changes_the_workgroup():
    module = shaders.spirv("matmul_tiled")
    assert spirv.reflect(module).local_size == (16, 16, 1)
    assert spirv.reflect(module, {0: 4}).local_size == (4, 4, 1)


def test_a_compile_error_shows_the_line():
    source = shaders.glsl("saxpy").replace("alpha * x[i]", "alpa * x[i]")
    with pytest.raises(spirv.CompileError, match="alpa") as caught:
        spirv.compile_glsl(source)
    number = next(place for place, line in enumerate(source.splitlines(), 1) if "alpa" in line)
    assert caught.value.where.startswith(f"line {number}: if (i < n)")


@pytest.mark.parametrize("junk", [b"", b"\0" * 20, b"not SPIR-V at all...", b"\x03\x02\x23\x07"])
def test_bytes_that_are_no_module_are_refused(junk):
    for read in (spirv.reflect, spirv.validate, spirv.disassemble):
        with pytest.raises(spirv.SpirvError, match="not a SPIR-V module"):
            read(junk)


def test_every_cut_module_is_a_named_error():
    module = shaders.spirv("saxpy")
    whole = spirv.reflect(module)
    for end in range(20, len(module), 4):
        try:
            assert spirv.reflect(module[:end]).entry == whole.entry
        except spirv.SpirvError:
            continue


def test_a_module_that_breaks_a_rule_does_not_validate():
    words = list(struct.unpack(f"<{len(shaders.spirv('saxpy')) // 4}I", shaders.spirv("saxpy")))
    words[3] = 1  # the bound: every id is too large now
    with pytest.raises(spirv.SpirvError, match="does not validate"):
        spirv.validate(struct.pack(f"<{len(words)}I", *words))


def test_a_vertex_shader_has_no_compute_entry_point():
    module = bytearray(shaders.spirv("saxpy"))
    words = list(struct.unpack(f"<{len(module) // 4}I", module))
    place = next(i for i, word in enumerate(words) if word & 0xFFFF == spirv.OP_ENTRY_POINT and i >= 5)
    words[place + 1] = 0
    with pytest.raises(spirv.SpirvError, match="no compute entry point"):
        spirv.reflect(struct.pack(f"<{len(words)}I", *words))


@pytest.mark.parametrize("name", shaders.names())
def test_every_instruction_of_the_course_is_explained(name):
    lines = [line for line in spirv.annotate(shaders.spirv(name)).splitlines() if line.strip()]
    assert [line for line in lines if "  ; " not in line] == []


def test_annotations_are_comments_so_that_the_text_assembles_again(tmp_path):
    assembler = Path(sysconfig.get_path("scripts"), "spirv-as")
    modules = []
    for text in (spirv.disassemble(shaders.spirv("softmax")), spirv.annotate(shaders.spirv("softmax"))):
        (tmp_path / "text").write_text(text)
        subprocess.run([assembler, "--target-env", "spv1.5", "text", "-o", "module"], check=True, cwd=tmp_path)
        modules.append((tmp_path / "module").read_bytes())
    assert modules[0] == modules[1]
    assert spirv.reflect(modules[1]) == spirv.reflect(shaders.spirv("softmax"))


def test_the_meaning_depends_on_the_word_that_decides_it():
    text = spirv.annotate(shaders.spirv("saxpy")).splitlines()
    meaning = {line.split("  ; ")[0].strip(): line.split("  ; ")[1] for line in text}
    assert meaning["OpDecorate %__0 Binding 1"] == "the number that a buffer is bound by"
    assert meaning["OpDecorate %__0 DescriptorSet 0"] == "the set that the binding belongs to"
    assert explain("%9 = OpTypeUnheardOf %3") == explain("") == ""


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_same_source_is_compiled_once(cache_folder, monkeypatch):
    source = shaders.glsl("saxpy")
    first = spirv.compile_cached(source)
    assert first == spirv.compile_glsl(source) and len(list(cache_folder.iterdir())) == 1
    monkeypatch.setattr(spirv, "compile_glsl", lambda source: pytest.fail("compiled again"))
    assert spirv.compile_cached(source) == first
    with pytest.raises(pytest.fail.Exception, match="compiled again"):
        spirv.compile_cached(source + "// another\n")


def test_another_compiler_or_target_does_not_use_what_was_stored(cache_folder, monkeypatch):
    source = shaders.glsl("saxpy")
    spirv.compile_cached(source)
    monkeypatch.setattr(spirv, "TARGET", "vulkan1.3")
    assert struct.unpack_from("<2I", spirv.compile_cached(source))[1] == 0x00010600


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[:-4], lambda b: b[:40] + b"\1" + b[41:]])
def test_a_damaged_stored_module_is_compiled_again(cache_folder, damage):
    source = shaders.glsl("saxpy")
    spirv.compile_cached(source)
    (stored,) = cache_folder.iterdir()
    whole = stored.read_bytes()
    stored.write_bytes(damage(whole))
    assert spirv.compile_cached(source) == shaders.spirv("saxpy")
    assert stored.read_bytes() == whole


def test_where_nothing_can_be_stored_it_is_compiled_each_time(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "file"))
    assert spirv.compile_cached(shaders.glsl("saxpy")) == shaders.spirv("saxpy")


def test_a_source_that_does_not_compile_is_not_stored(cache_folder):
    with pytest.raises(spirv.CompileError):
        spirv.compile_cached("#version 450\nvoid main() { x = 1; }\n")
    assert not cache_folder.exists()


def test_an_unknown_shader_is_named():
    with pytest.raises(shaders.ShaderError, match="saxpi"):
        shaders.glsl("saxpi")


def test_the_binding_is_what_the_generator_writes(tmp_path):
    pytest.importorskip("vulkan_object", reason="needs vulkan-object: make test installs it")
    import runpy

    root = Path(__file__).parents[2]
    generator = runpy.run_path(str(root / "tools/generate_vulkan_binding.py"))
    assert generator["binding"]() == (root / "helpers/edge/vulkan/binding.py").read_text()
