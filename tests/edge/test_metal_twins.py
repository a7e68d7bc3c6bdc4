"""Each kernel's MSL against its SPIR-V: the same arguments, the same bits where the arithmetic allows it."""

import re

import numpy as np
import pytest
from metal_kit import needs_shim

from helpers.edge import shaders
from helpers.edge.metal import ArgumentsError, cases, twins
from helpers.edge.metal.text import check_rules, read_kernels

pytestmark = needs_shim
COOPERATIVE = ("matmul_cooperative_f16", "matmul_cooperative_s8")
# `exp` may differ in its last bits between any two libraries.
INEXACT = {"softmax", "attention_decode", "silu_gate"}
# Which kernels need not agree to the bit, by driver; on another driver none needs to, as it may fuse a product
# with a sum. SwiftShader folds the lanes of a subgroup in another order.
INEXACT_BY_DRIVER = {
    "lavapipe": INEXACT,
    "swiftshader": INEXACT | {"reduce_subgroup", "scan_subgroup", "rmsnorm", "rmsnorm_residual"},
}
KINDS = {"uint": "uint", "int": "int", "float": "float"}


def same_bits(one, other):
    return np.array_equal(np.asarray(one).view(np.uint8).ravel(), np.asarray(other).view(np.uint8).ravel())


def test_every_shader_has_a_twin_and_cases():
    assert twins.names() == shaders.names() == tuple(sorted(cases.CASES))


@pytest.mark.parametrize("name", twins.names())
def test_the_twins_take_the_same_arguments(name):
    kernel, takes = read_kernels(twins.msl(name))[name], twins.signature(name)
    parameters = kernel.arguments
    assert [p.buffer for p in parameters] == list(range(len(takes.buffers) + len(takes.push)))
    buffers, scalars = parameters[: len(takes.buffers)], parameters[len(takes.buffers) :]
    assert [(p.name, not p.writable) for p in buffers] == list(takes.buffers)
    assert [(KINDS[p.type], p.name) for p in scalars] == list(takes.push)
    assert all(p.space == "constant" for p in scalars)


@pytest.mark.parametrize("name", twins.names())
def test_positions_and_sizes_of_a_kernel_have_one_type(name):
    """The specification asks it of a kernel's position attributes, and the stand-in does not mind."""
    parameters = read_kernels(twins.msl(name))[name].parameters
    placed = [p for p in parameters if re.search("position_in|threads_per_(?!simd)|threadgroups_per", p.builtin)]
    assert len({p.type for p in placed}) <= 1


@pytest.mark.parametrize("name", twins.names())
def test_the_defaults_are_the_same_and_the_text_keeps_the_rules(name):
    msl, glsl = twins.msl(name), shaders.glsl(name)
    check_rules(msl)
    defaults = {constant: value for _, constant, value in twins.CONSTANT.findall(glsl)}
    for macro, value in re.findall(r"(?m)^#define (\w+) (\d+)", msl):
        if macro != "LANES" or name not in COOPERATIVE:  # Apple's simdgroups have 32 lanes
            assert defaults[macro] == value, macro


@pytest.mark.parametrize("width", [4, 8, 16, 32])
@pytest.mark.parametrize("name", twins.names())
def test_the_msl_is_within_the_bound_of_float64_at_every_simdgroup_width(name, width):
    for case in cases.of(name, width)[1:]:
        assert case.error(case.run(width, shim=True)) <= 1


def spirv_result(device, case):
    buffers = [device.upload(bits_of(case.name, array)) for array in case.arrays]
    device.kernel(shaders.spirv(case.name), case.constants).run(case.groups, buffers, case.push)
    return [np.array(buffer.array()).view(array.dtype) for buffer, array in zip(buffers, case.arrays)]


def bits_of(name, array):
    """matmul_wide moves pairs of fp32 values as 64-bit words."""
    return array.view(np.uint64) if name == "matmul_wide" else array


@pytest.mark.parametrize("name", [name for name in twins.names() if name not in COOPERATIVE])
def test_the_msl_computes_what_the_spirv_does(any_device, driver_name, name):
    if name == "matmul_wide" and any_device.info.why_not("int64"):
        pytest.skip(f"{any_device.info.name}: {any_device.info.why_not('int64')}")
    lanes = max(4, any_device.subgroups.counted)
    if lanes > 32:
        pytest.skip(f"subgroups of {lanes}: a simdgroup of the stand-in has 32 lanes at most")
    exact = driver_name in INEXACT_BY_DRIVER and name not in INEXACT_BY_DRIVER[driver_name]
    for case in cases.of(name, lanes):
        msl, spirv = case.run(lanes, shim=True), spirv_result(any_device, case)
        assert case.error(msl) <= 1 and case.error(spirv) <= 1
        if exact:
            assert all(same_bits(msl[place], spirv[place]) for place in case.truths)


PROGRAM = """
import numpy
from helpers.edge import shaders
from helpers.edge.metal import cases
from helpers.edge.vulkan import open_device
with open_device() as device:
    lanes = device.subgroups.counted
    found = {{"lanes": numpy.array(lanes)}}
    for name in {names}:
        for number, case in enumerate(cases.of(name, lanes)):
            buffers = [device.upload(array) for array in case.arrays]
            device.kernel(shaders.spirv(name), case.constants).run(case.groups, buffers, case.push)
            found[f"{{name}} {{number}}"] = buffers[2].array().copy()
    messages = device.take_messages()
numpy.savez({path!r}, **found)
print(*messages)
"""


def test_simdgroup_matrices_have_the_bits_of_cooperative_matrices(newer_mesa, tmp_path):
    path = str(tmp_path / "found.npz")
    done = newer_mesa.run(PROGRAM.format(names=COOPERATIVE, path=path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""
    with np.load(path) as found:
        lanes = int(found["lanes"])
        for name in COOPERATIVE:
            for number, case in enumerate(cases.of(name, lanes)):
                assert same_bits(case.run(lanes, shim=True)[2], found[f"{name} {number}"])


def test_the_result_does_not_depend_on_who_holds_which_element():
    results = []
    for width in (4, 8, 16, 32):
        *_, last = cases.of("matmul_cooperative_f16", width)
        results.append(last.run(width, shim=True)[2])
    assert all(same_bits(results[0], result) for result in results[1:])


def test_a_call_says_what_executed_it_and_what_it_moved():
    case = cases.of("matmul_tiled")[2]
    arrays = [array.copy() for array in case.arrays]
    done = twins.call(case.name, case.groups, case.local_size, arrays, case.push, case.constants, shim=True)
    assert re.fullmatch(r"MSL by shim \(g\+\+ [\d.]+\), never compiled by Apple", done.executed)
    (m, k), n = case.arrays[0].shape, case.arrays[1].shape[1]
    traffic = {row.name: row for row in done.buffers}
    tile = case.constants[0]
    assert traffic["a"].read_bytes.value == 4 * m * k * -(-n // tile)  # each tile row of A, once a column of tiles
    assert traffic["b"].read_bytes.value == 4 * k * n * -(-m // tile)
    assert traffic["c"].written_bytes.value == 4 * m * n and traffic["c"].reads == 0
    assert {row.name for row in done.threadgroup} == {"tile_a", "tile_b"}
    assert done.barriers == 2 * -(-k // tile) * done.groups
    stamps = {done.duration.stamp, done.device_bytes.stamp, traffic["a"].read_bytes.stamp}
    assert stamps == {f"[simulated: {done.executed}]"}


def test_what_a_twin_cannot_take_is_refused():
    with pytest.raises(ArgumentsError, match="no MSL twin"):
        twins.msl("convolution")
    with pytest.raises(ArgumentsError, match="no macro for constant 9"):
        twins.msl("matmul_tiled", {9: 1})
    with pytest.raises(ArgumentsError, match="3 bytes of push constants"):
        twins.call("saxpy", (1,), (64,), [np.zeros(4, np.float32)] * 2, b"abc", shim=True)
    with pytest.raises(ArgumentsError, match="no cases"):
        cases.of("convolution")
