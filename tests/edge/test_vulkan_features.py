import struct
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.edge import shaders, spirv
from helpers.edge.vulkan import KernelError, NoVulkan, SubgroupWarning, VulkanError, devices, open_device, subgroups
from helpers.edge.vulkan.access import read_needs
from helpers.edge.vulkan.cache import FOLDER_VARIABLE
from helpers.edge.vulkan.features import CAPABILITIES, FEATURES

SAXPY = shaders.spirv("saxpy")
SMALL_TYPES = """#version 450
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_8bit_storage : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) readonly buffer X { float16_t x[]; };
layout(set = 0, binding = 1) readonly buffer Q { int8_t q[]; };
layout(set = 0, binding = 2) writeonly buffer Y { float16_t y[]; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < x.length()) y[i] = x[i] * float16_t(q[i]);
}
"""
SUBGROUP_SUM = """#version 450
#extension GL_KHR_shader_subgroup_arithmetic : require
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) writeonly buffer Y { uint y[]; };
void main() { y[gl_LocalInvocationIndex] = subgroupAdd(1u); }
"""


def without(info, *abilities):
    """The same device, lacking some abilities."""
    return replace(info, absences=tuple((name, "gone" if name in abilities else why) for name, why in info.absences))


@pytest.fixture
def plain():
    if not devices():
        pytest.skip("needs a Vulkan device")
    with open_device() as device:
        yield device


def test_every_ability_is_there_or_says_why(any_device):
    info = any_device.info
    names = [name for name, _ in info.absences]
    assert len(names) == len(set(names)) and {feature.name for feature in FEATURES} <= set(names)
    assert set(CAPABILITIES.values()) <= set(names)
    for name in names:
        assert info.can(name) is (info.why_not(name) == "")
    assert set(info.abilities) == {name for name in names if info.can(name)}
    assert info.can("robust_access") and info.can("subgroup_basic")  # every driver of Vulkan 1.1 must


def test_an_unknown_ability_is_named(any_device):
    with pytest.raises(VulkanError, match="no ability 'telepathy'") as caught:
        any_device.info.can("telepathy")
    assert "cooperative_matrix" in caught.value.mend


def test_a_device_is_chosen_by_what_it_can(any_driver):
    with open_device(driver=any_driver, needs=("subgroup_ballot", "robust_access")) as device:
        info = device.info
    absent = [name for name, reason in info.absences if reason]
    with pytest.raises(NoVulkan, match=f"that can robust_access, {absent[0]}") as caught:
        open_device(driver=any_driver, needs=("robust_access", absent[0]))
    assert info.why_not(absent[0]) in caught.value.what and info.name in caught.value.what
    with pytest.raises(VulkanError, match="no ability"):
        open_device(driver=any_driver, needs=("no such thing",))


def test_a_shader_that_needs_more_is_refused_before_the_driver_sees_it(any_device):
    """SwiftShader ends the process when it is given doubles."""
    doubles = spirv.compile_glsl(shaders.glsl("saxpy").replace("alpha * x[i]", "float(double(alpha) * x[i])"))
    assert 10 in read_needs(doubles).capabilities
    if any_device.info.can("float64"):  # and it is not switched on: the validation layer says so
        kernel = any_device.kernel(doubles)
        assert any_device.take_messages() == kernel.messages
        assert any("Float64" in message.text for message in kernel.messages) or not any_device.info.validation
        return
    with pytest.raises(KernelError, match="needs float64: the driver says no to shaderFloat64") as caught:
        any_device.kernel(doubles)
    assert "needs=('float64',)" in caught.value.mend


def test_every_missing_ability_of_a_shader_is_noticed(plain):
    module = spirv.compile_glsl(SMALL_TYPES)
    for ability in ("float16", "storage16", "storage8"):
        kept, plain.info = plain.info, without(plain.info, ability)
        with pytest.raises(KernelError, match=f"needs {ability}: gone"):
            plain.kernel(module)
        plain.info = kept


def test_half_precision_and_bytes_are_switched_on(any_device):
    for ability in ("float16", "int8", "storage16", "storage8"):
        if not any_device.info.can(ability):
            pytest.skip(f"{any_device.info.name} lacks {ability}: {any_device.info.why_not(ability)}")
    x = np.linspace(-4, 4, 101).astype(np.float16)
    q = np.arange(-50, 51, dtype=np.int8)
    y = any_device.buffer(101, np.float16)
    any_device.kernel(spirv.compile_glsl(SMALL_TYPES)).run((2,), [any_device.upload(x), any_device.upload(q), y])
    assert np.array_equal(y.array(), x * q.astype(np.float16))


def test_declared_accesses_are_read_from_the_module():
    found = read_needs(spirv.compile_glsl(SMALL_TYPES)).accesses
    assert [(a.binding, a.reads, a.writes, a.element) for a in found] == [
        (0, True, False, "float16"),
        (1, True, False, "int8"),
        (2, False, True, "float16"),
    ]
    assert [(a.reads, a.writes) for a in read_needs(SAXPY).accesses] == [(True, False), (True, True)]


def test_a_subgroup_size_can_be_required(any_device):
    info = any_device.info
    if not (info.can("subgroup_size_control") and info.can("subgroup_arithmetic")):
        pytest.skip(info.why_not("subgroup_size_control") or info.why_not("subgroup_arithmetic"))
    seen, module = any_device.buffer(64, np.uint32), spirv.compile_glsl(SUBGROUP_SUM)
    least, most = info.subgroup_sizes
    kernel = any_device.kernel(module, subgroup_size=most, full_subgroups=info.can("full_subgroups"))
    kernel.run((1,), [seen])
    assert np.all(seen.array() == most)
    for size in (most * 2, 3, 0):
        with pytest.raises(KernelError, match=f"a subgroup of {size}") as caught:
            any_device.kernel(module, subgroup_size=size)
        assert f"from {least} to {most}" in caught.value.mend


def test_full_subgroups_need_a_workgroup_that_divides(device):
    if not device.info.can("full_subgroups"):
        pytest.skip(device.info.why_not("full_subgroups"))
    odd = spirv.compile_glsl(SUBGROUP_SUM.replace("local_size_x = 64", "local_size_x = 63"))
    with pytest.raises(KernelError, match="does not divide into full subgroups"):
        device.kernel(odd, full_subgroups=True)
    device.kernel(odd)


def test_size_control_that_is_absent_says_why(plain):
    plain.info = without(plain.info, "subgroup_size_control", "full_subgroups")
    with pytest.raises(KernelError, match="subgroup_size_control is not to be had: gone"):
        plain.kernel(SAXPY, subgroup_size=8)
    with pytest.raises(KernelError, match="full_subgroups is not to be had: gone"):
        plain.kernel(SAXPY, full_subgroups=True)


def test_an_honest_driver_is_believed(any_device):
    probe = any_device.subgroups
    assert probe.honest and probe.counted == any_device.info.subgroup_size, str(probe)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        any_device.kernel(spirv.compile_glsl(SUBGROUP_SUM))


def test_a_driver_that_lies_about_its_subgroups_is_caught(plain):
    plain.info = replace(plain.info, subgroup_size=32 if plain.info.subgroup_size != 32 else 64)
    with pytest.warns(SubgroupWarning, match=r"advertised 32, gl_SubgroupSize \d+, counted") as caught:
        plain.kernel(spirv.compile_glsl(SUBGROUP_SUM))
    assert caught[0].filename == __file__
    assert not plain.subgroups.honest
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough
        plain.kernel(spirv.compile_glsl(SUBGROUP_SUM))


def test_a_driver_without_ballots_is_not_probed(plain):
    plain.info = without(plain.info, "subgroup_ballot")
    assert plain.subgroups.honest and "gone" in str(plain.subgroups)


def test_the_probe_is_what_the_pinned_compiler_makes():
    source = Path(subgroups.__file__).with_name("subgroup_probe.comp")
    assert spirv.compile_glsl(source.read_text()) == subgroups.SPIRV.read_bytes()
    spirv.validate(subgroups.SPIRV.read_bytes())


def test_kernels_and_modules_are_made_once(device, monkeypatch):
    kernel = device.kernel(SAXPY)
    assert device.kernel(bytes(bytearray(SAXPY))) is kernel
    tiled = shaders.spirv("matmul_tiled")
    first = device.kernel(tiled, {0: 4})

    def refuse(*_):
        raise AssertionError("a second module")

    monkeypatch.setitem(vars(device.functions), "vkCreateShaderModule", refuse)
    assert device.kernel(tiled, {0: 8}) is not first


def run_saxpy():
    with open_device() as device:
        device.kernel(SAXPY).run((1,), [device.buffer(64), device.buffer(64)], struct.pack("<If", 64, 1.0))
        return device


def test_pipelines_are_kept_on_disk_and_found_again(plain, tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "new"))
    first = run_saxpy()
    assert first.pipelines.path.is_file() and not first.pipelines.loaded and not first.pipelines.problem
    second = run_saxpy()
    assert second.pipelines.loaded == first.pipelines.path.stat().st_size - 32
    assert sorted(tmp_path.joinpath("new").iterdir()) == [first.pipelines.path]


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b"", lambda b: b"junk", lambda b: b[:40] + b"!" + b[41:]]
)
def test_a_damaged_cache_is_put_aside(plain, tmp_path, monkeypatch, damage):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    path = run_saxpy().pipelines.path
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    after = run_saxpy()
    assert "is damaged" in after.pipelines.problem and not after.pipelines.loaded
    assert after.take_messages() == () and path.read_bytes() == whole


def test_a_folder_that_cannot_be_written_stops_nothing(plain, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "file"))
    assert "nothing was stored" in run_saxpy().pipelines.problem


def test_a_specialization_constant_may_be_a_float_or_negative(device):
    source = """#version 450
    layout(constant_id = 0) const float A = 1.0;
    layout(constant_id = 1) const int B = 1;
    layout(set = 0, binding = 0) writeonly buffer Y { float y[]; };
    void main() { y[0] = A * float(B); }"""
    y = device.buffer(1)
    device.kernel(spirv.compile_glsl(source), {0: 1.5, 1: -4}).run((1,), [y])
    assert y.array()[0] == -6
