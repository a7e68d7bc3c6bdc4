"""Cooperative matrix: the choice, the way without, and what is said when it is broken on purpose."""

from types import SimpleNamespace

import numpy as np
import pytest

from helpers.edge import bounds, shaders
from helpers.edge.cooperative import CooperativeError, Way, break_it, choose, multiply, observe
from helpers.edge.kernels import cooperative_shapes
from helpers.edge.vulkan import Driver, KernelError, MatrixShape, NoVulkan


def matrices(dtype, m, k, n):
    draw = np.random.default_rng(k)
    if dtype == np.float16:
        return draw.standard_normal((m, k)).astype(dtype), draw.standard_normal((k, n)).astype(dtype)
    return draw.integers(-128, 128, (m, k), dtype=dtype), draw.integers(-128, 128, (k, n), dtype=dtype)


def info(*shapes, lacks=""):
    return SimpleNamespace(
        cooperative_matrix=shapes, why_not=lambda ability: f"no {ability} today" if ability == lacks else ""
    )


def test_the_shape_with_the_most_reuse_is_chosen():
    small, large = MatrixShape(8, 8, 32, "f16", "f32"), MatrixShape(16, 16, 16, "f16", "f32")
    others = MatrixShape(64, 64, 16, "f16", "f16"), MatrixShape(64, 64, 16, "f16", "f32", scope="workgroup")
    assert choose(info(small, large, *others), "f16").shape == large
    assert choose(info(large, small), "f16").shape == large


@pytest.mark.parametrize("ability", ["cooperative_matrix", "memory_model", "float16", "storage16"])
def test_the_reason_names_what_is_missing(ability):
    found = choose(info(MatrixShape(8, 8, 8, "f16", "f32"), lacks=ability), "f16")
    assert (found.shape, found.reason) == (None, f"no {ability} today")


def test_a_device_without_a_shape_for_the_types_says_so():
    assert "no shape s8→s32" in choose(info(MatrixShape(8, 8, 8, "f16", "f32")), "s8").reason
    with pytest.raises(CooperativeError, match="matrices of f64"):
        choose(info(), "f64")


@pytest.mark.parametrize("sizes", [(1, 1, 1), (37, 50, 29), (5, 2500, 6)])
@pytest.mark.parametrize("dtype", [np.float16, np.int8])
def test_the_way_without_gives_the_same_numbers(any_device, dtype, sizes):
    a, b = matrices(dtype, *sizes)
    product = multiply(any_device, a, b)
    listed = bool(cooperative_shapes(any_device.info, "f16" if dtype == np.float16 else "s8"))
    assert (product.rung, bool(product.reason)) == (("cooperative", False) if listed else ("tiled", True))
    truth = a.astype(float) @ b.astype(float)
    bound = bounds.dot_bound(a, b) if dtype == np.float16 else 0.0
    assert product.c.dtype == (np.float32 if dtype == np.float16 else np.int32)
    assert bounds.error_ratio(product.c, truth, bound) <= 1


def test_int8_is_exact_at_the_far_end(device):
    a, b = np.full((2, 3000), -128, np.int8), np.full((3000, 2), -128, np.int8)
    assert (multiply(device, a, b).c == 3000 * 2**14).all()


def test_what_cannot_be_multiplied_is_named(device):
    half, other = np.ones((2, 3), np.float16), np.ones((3, 2), np.int8)
    for a, b in ((half, other), (half, half), (half[0], half), (half.astype(float), half.T.astype(float))):
        with pytest.raises(CooperativeError, match="times"):
            multiply(device, a, b)


def test_a_device_without_it_refuses_the_shader_with_the_reason(any_device):
    if any_device.info.can("cooperative_matrix"):
        pytest.skip(f"{any_device.info.name} has it")
    with pytest.raises(
        KernelError, match=r"the shader needs (cooperative_matrix|float16|storage16|memory_model): \w+"
    ):
        any_device.kernel(shaders.spirv("matmul_cooperative_f16"))
    with pytest.raises(CooperativeError, match="nothing to break"):
        break_it(any_device, "shape")


def test_a_driver_that_is_not_here_is_named():
    with pytest.raises(NoVulkan, match="cannot be loaded"):
        observe(Driver("none", None, "it is not here"))


@pytest.fixture(scope="module")
def observed(newer_mesa):
    return observe(newer_mesa)


def test_it_runs_for_real(observed):
    assert "8×8×8 f16→f32" in observed.shapes and "8×8×8 s8→s32" in observed.shapes
    assert observed.error["f16"] <= 1 and observed.error["s8"] == 0
    assert observed.messages == ()


def broken(observed, way):
    return next(each for each in observed.broken if each.way == way)


def test_a_shape_that_is_not_listed(observed):
    found = broken(observed, Way.SHAPE)
    assert "doesn't match any VkCooperativeMatrixPropertiesKHR" in found.said and "rows: 16, cols: 16" in found.said
    assert found.rule.startswith("VUID-RuntimeSpirv-OpTypeCooperativeMatrixKHR")


def test_a_local_size_that_is_no_multiple_of_the_subgroup(observed):
    found = broken(observed, Way.LOCAL_SIZE)
    assert found.rule == "VUID-VkPipelineShaderStageCreateInfo-module-08987"
    assert f"(4) that is not a multiple of subgroupSize ({observed.subgroup})" in found.said
    assert found.wrong > found.elements // 2  # and the driver says nothing


def test_a_barrier_that_is_missing(observed):
    found = broken(observed, Way.BARRIER)
    assert found.rule == "SYNC-HAZARD-READ-AFTER-WRITE" and "READ_AFTER_WRITE hazard detected" in found.said
