"""One Slang text a kernel: its SPIR-V and its MSL compute what the course's own GLSL and MSL do."""

import re
import struct
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from metal_kit import needs_shim

from helpers.edge import shaders, slang, spirv
from helpers.edge.metal import MslCompileError, cases, twins
from helpers.edge.vulkan import driver
from helpers.edge.vulkan.access import read_needs
from helpers.edge.vulkan.features import CAPABILITIES

ABSENT = slang.why_not()
needs_slang = pytest.mark.skipif(bool(ABSENT), reason=ABSENT or "slangpy is installed")
COOPERATIVE = "matmul_cooperative_f16"
SCALAR = ("matmul_tiled", "rmsnorm", "saxpy", "softmax")
# Of lavapipe and the stand-in: `exp` may differ in its last bits between any two libraries.
INEXACT = {"softmax"}
TEXT = """[[vk::binding(0)]] RWStructuredBuffer<float> y;
[shader("compute")]
[numthreads(8, 1, 1)]
void twice(uint3 at : SV_DispatchThreadID) {
    y[at.x] = 2 * y[at.x];
}
"""


def same_bits(one, other):
    return np.array_equal(np.asarray(one).view(np.uint8).ravel(), np.asarray(other).view(np.uint8).ravel())


def dispatch(device, module, case, constants):
    buffers = [device.upload(array) for array in case.arrays]
    device.kernel(module, constants).run(case.groups, buffers, case.push)
    return [np.array(buffer.array()) for buffer in buffers]


def run_msl(case, width):
    arrays = [array.copy() for array in case.arrays]
    slang.call(
        case.name, case.groups, case.local_size, arrays, case.push, case.constants, simd_width=width, shim=True
    )
    return arrays


def test_the_texts_are_of_kernels_that_have_twins():
    assert slang.names() == tuple(sorted((COOPERATIVE, *SCALAR))) and set(slang.names()) <= set(twins.names())


@needs_slang
@pytest.mark.parametrize("name", slang.names())
def test_a_module_validates_and_takes_what_the_glsl_takes(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error", slang.SlangWarning)
        module = slang.spirv(name)
        text = slang.msl(name)
    assert f"void {name}(" in text and "#line" not in text  # faults name the lines of the MSL
    spirv.validate(module)
    found, glsl = spirv.reflect(module), spirv.reflect(shaders.spirv(name))
    assert (found.bindings, found.push_bytes) == (glsl.bindings, glsl.push_bytes)
    assert found.local_size == glsl.local_size
    needs, theirs = read_needs(module), read_needs(shaders.spirv(name))
    assert [access.element for access in needs.accesses] == [access.element for access in theirs.accesses]
    assert [access.writes for access in needs.accesses] == [access.writes for access in theirs.accesses]
    abilities = {CAPABILITIES.get(number) for number in needs.capabilities}
    extra = {"device_scope"} if name == COOPERATIVE else set()
    assert abilities - extra == {CAPABILITIES.get(number) for number in theirs.capabilities}


@needs_slang
@pytest.mark.parametrize("name", SCALAR)
def test_the_spirv_has_the_bits_of_the_glsl_on_the_same_driver(any_device, driver_name, name):
    for case in cases.of(name):
        ours = dispatch(any_device, shaders.spirv(name), case, case.constants)
        theirs = dispatch(any_device, slang.spirv(name, case.constants), case, {})
        assert case.error(theirs) <= 1
        if driver_name in ("lavapipe", "swiftshader"):  # another driver may fuse a product with a sum
            assert all(same_bits(ours[place], theirs[place]) for place in case.truths)


@needs_slang
@needs_shim
@pytest.mark.parametrize("width", [4, 8, 16, 32])
@pytest.mark.parametrize("name", slang.names())
def test_the_msl_has_the_bits_of_the_twin_at_every_simdgroup_width(name, width):
    for case in cases.of(name, width)[1:]:
        found, twin = run_msl(case, width), case.run(width, shim=True)
        assert case.error(found) <= 1
        assert all(same_bits(found[place], twin[place]) for place in case.truths)


@needs_slang
@needs_shim
@pytest.mark.parametrize("name", SCALAR)
def test_the_msl_computes_what_the_spirv_of_the_same_text_does(any_device, driver_name, name):
    lanes = max(4, any_device.subgroups.counted)
    if lanes > 32:
        pytest.skip(f"subgroups of {lanes}: a simdgroup of the stand-in has 32 lanes at most")
    for case in cases.of(name, lanes):
        msl, module = run_msl(case, lanes), dispatch(any_device, slang.spirv(name, case.constants), case, {})
        assert case.error(msl) <= 1
        if driver_name == "lavapipe" and name not in INEXACT:
            assert all(same_bits(msl[place], module[place]) for place in case.truths)


PROGRAM = """
import numpy
from helpers.edge import shaders, slang
from helpers.edge.metal import cases
from helpers.edge.vulkan import open_device
with open_device() as device:
    lanes = device.subgroups.counted
    found = {{"lanes": numpy.array(lanes)}}
    for name in {names}:
        for number, case in enumerate(cases.of(name, lanes)):
            for maker, module, constants in (
                ("glsl", shaders.spirv(name), case.constants), ("slang", slang.spirv(name, case.constants), {{}})
            ):
                buffers = [device.upload(array) for array in case.arrays]
                device.kernel(module, constants).run(case.groups, buffers, case.push)
                found[f"{{name}} {{number}} {{maker}}"] = buffers[max(case.truths)].array().copy()
    messages = device.take_messages()
numpy.savez({path!r}, **found)
print(*messages)
"""


def compare_in_child(chosen, names, path, **environment):
    """The lanes of the child's device, after both languages' results there were compared."""
    done = chosen.run(PROGRAM.format(names=names, path=str(path)), **environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""
    with np.load(path) as found:
        lanes = int(found["lanes"])
        for name in names:
            for number, case in enumerate(cases.of(name, lanes)):
                ours, theirs = (found[f"{name} {number} {maker}"] for maker in ("glsl", "slang"))
                assert same_bits(ours, theirs)
                assert case.error({max(case.truths): theirs}) <= 1
                if name == COOPERATIVE:
                    assert same_bits(theirs, run_msl(case, lanes)[2])
    return lanes


@needs_slang
@pytest.mark.parametrize(("bits", "lanes"), [(128, 4), (256, 8), (512, 16)])
def test_the_spirv_at_every_subgroup_size(tmp_path, bits, lanes):
    lavapipe = driver("lavapipe")
    if lavapipe.why_not:
        pytest.skip(lavapipe.why_not)
    if bits == 512 and "avx512f" not in Path("/proc/cpuinfo").read_text(encoding="ascii"):
        pytest.skip("needs a processor with AVX-512: LP_NATIVE_VECTOR_WIDTH=512")
    widths = {"LP_NATIVE_VECTOR_WIDTH": str(bits), "MESA_SHADER_CACHE_DISABLE": "true"}
    assert compare_in_child(lavapipe, ("rmsnorm", "softmax"), tmp_path / "found.npz", **widths) == lanes


@needs_slang
@needs_shim
def test_cooperative_matrices_from_one_text(newer_mesa, tmp_path):
    """SPIR-V of Slang, SPIR-V of GLSL and MSL of Slang have the same bits, sizes that divide no tile included."""
    compare_in_child(newer_mesa, (COOPERATIVE,), tmp_path / "found.npz")


@needs_slang
def test_macros_are_the_constants_of_the_glsl():
    assert slang.macros("saxpy", {0: 32}) == {"GROUP": 32} and slang.macros("matmul_tiled", {0: 8}) == {"TILE": 8}
    assert spirv.reflect(slang.spirv("matmul_tiled", {0: 8})).local_size == (8, 8, 1)
    with pytest.raises(slang.SlangError, match="no macro for constant 7"):
        slang.macros("softmax", {7: 1})
    with pytest.raises(slang.SlangError, match="no Slang text"):
        slang.spirv("embed")


@needs_slang
@pytest.mark.parametrize("make", [slang.compile_spirv, slang.compile_msl])
def test_what_does_not_compile_names_the_file_and_the_line(make):
    for broken, what in ((TEXT.replace("2 *", "2 * z +"), "z"), (TEXT.replace("y[at.x] =", "y[at.x =", 1), "]")):
        with pytest.raises(slang.SlangCompileError, match=re.escape(what)) as caught:
            make(broken, "twice", path="twice.slang")
        assert caught.value.where == f"twice.slang line 5: {broken.splitlines()[4].strip()}"
    with pytest.raises(slang.SlangCompileError, match="no entry point 'thrice'") as caught:
        make(TEXT, "thrice")
    assert caught.value.mend == "the text has: twice"
    with pytest.raises(slang.SlangCompileError, match="no entry point 'twice'"):
        make("", "twice")
    with pytest.raises(slang.SlangCompileError, match="numthreads"):
        make(TEXT.replace("8", "GROUP"), "twice", {"GROUP": 0})
    assert make(TEXT, "twice")  # an error leaves the compiler usable


@needs_slang
def test_what_a_target_lacks_is_named():
    prefix = TEXT.replace("2 * y[at.x]", "WaveMultiPrefixSum(y[at.x], uint4(255))")
    assert slang.compile_spirv(prefix, "twice")
    with pytest.raises(slang.SlangCompileError, match="WaveMultiPrefixSum is not to be had") as caught:
        slang.compile_msl(prefix, "twice")
    assert caught.value.where.startswith("kernel.slang line 5: ")
    with pytest.raises(slang.SlangCompileError, match="'double'") as caught:
        slang.compile_msl(TEXT.replace("2 * y[at.x]", "float(2 * double(y[at.x]))"), "twice")
    assert caught.value.where.startswith("kernel.slang line 5: ")
    with pytest.raises(slang.SlangCompileError, match="8x8"):
        slang.msl(COOPERATIVE, {1: 16, 2: 16, 3: 16})


@needs_slang
def test_what_the_compiler_doubts_is_a_warning():
    text = TEXT.replace("[[vk", "[[vk::binding(0)]] StructuredBuffer<float> x;\n[[vk", 1).replace("2 *", "x[0] *")
    with pytest.warns(slang.SlangWarning, match="explicit binding overlap"):
        slang.compile_spirv(text, "twice")


@needs_slang
@needs_shim
def test_a_fault_in_the_msl_is_named():
    from helpers.edge.metal import OutOfBounds, shim_library

    y = np.ones(5, np.float32)
    with pytest.raises(OutOfBounds, match=r"y_\w+\[5\], which has 5 elements of 4 bytes\n.*line \d+: "):
        shim_library(slang.compile_msl(TEXT, "twice")).twice(y, threads=8, group_size=8)


@needs_shim
def test_functions_that_differ_in_address_spaces_alone_run_on_the_stand_in():
    """Slang's loads of matrices are such; a function that differs in more is not dropped."""
    from metal_kit import run, text

    functions = (
        "template <class T> T first(const device T* p) { return p[0]; }\n"
        "template <class T> T first(const threadgroup T* p) { return p[0]; }\n"
    )
    body = "threadgroup float own[1]; own[0] = 2; x[1] = first(x) + first(own);"
    x = np.array([3, 0], np.float32)
    run(text(body, before=functions), x, threads=1)
    assert x[1] == 5
    with pytest.raises(MslCompileError, match="first"):
        run(
            text(
                body, before=functions.replace("threadgroup T* p) { return p[0]", "threadgroup T* p) { return p[1]")
            ),
            x,
        )


def words(module):
    return struct.unpack(f"<{len(module) // 4}I", module)


def capabilities(module):
    return set(read_needs(module).capabilities)


def test_capabilities_of_uniform_buffers_are_left_off_where_there_are_none():
    storage = """#version 450
#extension GL_EXT_shader_16bit_storage : require
layout(local_size_x = 1) in;
layout(set = 0, binding = 0) {} Y {{ float16_t y[4]; }};
layout(set = 0, binding = 1) buffer Z {{ float z[]; }};
void main() {{ z[0] = float(y[0]); }}
"""
    only_storage, uniform = (spirv.compile_glsl(storage.format(kind)) for kind in ("buffer", "uniform"))
    wide = bytearray(only_storage)
    place = words(only_storage).index(4433)
    wide[4 * place : 4 * place + 4] = struct.pack("<I", 4434)
    assert slang._narrow(bytes(wide)) == only_storage == slang._narrow(only_storage)
    assert 4434 in capabilities(uniform) and slang._narrow(uniform) == uniform


def test_without_slangpy_the_reason_says_what_to_install(monkeypatch, tmp_path):
    pins = (Path(__file__).parents[2] / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert slang.INSTALL.removeprefix("pip install ") in pins
    monkeypatch.setattr(slang, "_session", slang._session.__wrapped__)
    monkeypatch.setattr(slang, "find_spec", lambda name: None)
    assert slang.why_not() == f"slangpy is not installed: {slang.INSTALL}"
    with pytest.raises(slang.SlangUnavailable, match="not installed"):
        slang.spirv("saxpy")
    monkeypatch.setattr(slang, "find_spec", lambda name: SimpleNamespace(submodule_search_locations=[str(tmp_path)]))
    assert slang.why_not().startswith("this slangpy has no libslang-compiler")
    (tmp_path / "libslang-compiler.so").write_bytes(b"")
    assert slang.why_not().startswith("Slang's library cannot be used")
    if sys.platform == "linux":  # a library without the functions
        monkeypatch.setattr(slang, "_library_path", lambda: Path("libc.so.6"))
        assert "spGetBuildTagString" in slang.why_not()


# What slangpy 0.43.1 said, so that the reading of it is tested everywhere.
SAID = """error[E30027]: member not found
  --> kernel.slang:2:5
   |
 2 | y = at.q;
   |        ^ 'q' is not a member of 'vector<uint,3>'.
---'
error[E30015]: undefined identifier
  --> kernel.slang:3:1
   |
 3 | z;
   | ^ undefined identifier 'z'.
---'
"""


def test_the_first_error_is_the_one_that_is_shown():
    error = slang._complaint(SAID, "void f() {\n    y = at.q;\n    z;\n}", "f", "kernel.slang")
    assert error.what == "member not found: 'q' is not a member of 'vector<uint,3>'."
    assert error.where == "kernel.slang line 2: y = at.q;"
    assert slang._complaint("", "", "f", "k.slang").what == "the compiler said: nothing, and made no code"
    elsewhere = slang._complaint(SAID.replace("kernel.slang", "other.slang"), "a\nb\n", "f", "kernel.slang")
    assert elsewhere.where == "other.slang line 2"
