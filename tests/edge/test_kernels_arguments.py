"""What a kernel cannot take is named before anything runs."""

import numpy as np
import pytest

from helpers.edge import kernels
from helpers.edge.kernels import ArgumentError
from helpers.edge.kernels.family import spread


def buffers(device, *parts):
    return [device.buffer(shape, dtype) for shape, dtype in parts]


F, U = np.float32, np.uint32
WRONG = {
    "saxpy dtype": (lambda d: kernels.Saxpy(d), [(8, F), (8, np.int32)], "y is int32"),
    "saxpy shape": (lambda d: kernels.Saxpy(d), [(8, F), (9, F)], r"x has the shape \(8,\) and y \(9,\)"),
    "saxpy length": (lambda d: kernels.Saxpy(d, group=1), [(70_000, F), (70_000, F)], "70000 workgroups"),
    "reduction dtype": (lambda d: kernels.Reduction(d), [(8, np.float16), (1, F)], "x is float16"),
    "reduction result": (lambda d: kernels.Reduction(d), [(8, F), (2, F)], r"result has the shape \(2,\)"),
    "scan axes": (lambda d: kernels.Scan(d), [((2, 4), F), ((2, 4), F)], "1 axes"),
    "scan shape": (lambda d: kernels.Scan(d), [(8, F), (7, F)], "one shape"),
    "softmax axes": (lambda d: kernels.Softmax(d), [(8, F), (8, F)], "2 axes"),
    "softmax shape": (lambda d: kernels.Softmax(d), [((2, 4), F), ((4, 2), F)], "one shape"),
    "norm weight": (lambda d: kernels.RmsNorm(d), [((2, 4), F), (2, F), ((2, 4), F)], r"weight has .* \(2,\)"),
    "norm dtype": (lambda d: kernels.RmsNorm(d), [((2, 4), F), (4, np.float16), ((2, 4), F)], "weight is float16"),
    "residual": (
        lambda d: kernels.RmsNormResidual(d),
        [((2, 4), F), ((2, 3), F), (4, F), ((2, 4), F)],
        r"residual has .* \(2, 3\)",
    ),
    "matvec words": (lambda d: kernels.DequantMatvec(d), [((3, 5), U), ((1, 5), U), (32, F), (5, F)], r"\(4, 5\)"),
    "matvec scales": (lambda d: kernels.DequantMatvec(d), [((4, 5), U), ((2, 5), U), (32, F), (5, F)], r"\(1, 5\)"),
    "matvec dtype": (lambda d: kernels.DequantMatvec(d), [((4, 5), F), ((1, 5), U), (32, F), (5, F)], "words is"),
    "matvec result": (lambda d: kernels.DequantMatvec(d), [((4, 5), U), ((1, 5), U), (32, F), (6, F)], "y has"),
    "matmul words": (lambda d: kernels.DenseMatmul(d, 2), [((5, 4), U), ((3, 6), F), ((3, 5), F)], r"use \(5, 3\)"),
    "matmul dtype": (lambda d: kernels.DenseMatmul(d), [((5, 4), F), ((3, 4), F), ((3, 5), F)], "words is float32"),
    "matmul result": (
        lambda d: kernels.DenseMatmul(d),
        [((5, 4), U), ((3, 4), F), ((5, 3), F)],
        r"y has .* \(5, 3\)",
    ),
    "matmul vectors": (lambda d: kernels.DenseMatmul(d), [((5, 4), U), (4, F), (5, F)], "2 axes"),
    "dequant words": (
        lambda d: kernels.DequantMatmul(d),
        [((3, 5), U), ((1, 5), U), ((2, 32), F), ((2, 5), F)],
        r"\(4, 5\)",
    ),
    "dequant scales": (
        lambda d: kernels.DequantMatmul(d, 8),
        [((8, 5), U), ((2, 5), U), ((2, 32), F), ((2, 5), F)],
        r"\(1, 5\)",
    ),
    "attention tokens": (
        lambda d: kernels.AttentionDecode(d, 2, 1, 4),
        [((3, 2, 4), F), ((7, 1, 4), F), ((7, 1, 4), F), (1, U), ((2, 2, 4), F)],
        "y has",
    ),
    "attention query": (
        lambda d: kernels.AttentionDecode(d, 2, 1, 4),
        [((2, 5), F), ((7, 1, 4), F), ((7, 1, 4), F), (1, U), ((2, 4), F)],
        "q has",
    ),
    "attention cache": (
        lambda d: kernels.AttentionDecode(d, 2, 1, 4),
        [((2, 4), F), ((7, 1, 4), F), ((6, 1, 4), F), (1, U), ((2, 4), F)],
        "values has",
    ),
    "attention length": (
        lambda d: kernels.AttentionDecode(d, 2, 1, 4),
        [((2, 4), F), ((7, 1, 4), F), ((7, 1, 4), F), (1, F), ((2, 4), F)],
        "length is float32",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_buffers_are_named_and_nothing_is_written(device, name):
    make, parts, message = WRONG[name]
    given = buffers(device, *parts)
    given[-1].array()[...] = 7
    with pytest.raises(ArgumentError, match=message) as caught:
        make(device).run(*given)
    assert caught.value.mend
    assert np.all(given[-1].array() == 7)


def test_a_buffer_that_is_read_and_written_at_once_is_refused(device):
    x, weight = device.buffer((2, 4)), device.buffer(4)
    with pytest.raises(ArgumentError, match="residual is one of the others"):
        kernels.RmsNormResidual(device).run(x, x, weight, device.buffer((2, 4)))
    row = device.buffer(8)
    with pytest.raises(ArgumentError, match="two buffers"):
        kernels.Scan(device).run(row, row)


@pytest.mark.parametrize("group", [0, 3, 96])
def test_a_tree_needs_a_power_of_two(device, group):
    for family in (kernels.Reduction, kernels.Scan):
        with pytest.raises(ArgumentError, match=f"group is {group}"):
            family(device, group=group)


@pytest.mark.parametrize(
    ("heads", "key_heads", "size", "message"),
    [(3, 2, 8, "3 query heads"), (0, 1, 8, "0 query heads"), (64, 1, 128, "16384 bytes of shared memory")],
)
def test_heads_that_do_not_fit_are_refused(device, heads, key_heads, size, message):
    with pytest.raises(ArgumentError, match=message):
        kernels.AttentionDecode(device, heads, key_heads, size)


@pytest.mark.parametrize(
    ("matrix", "bits", "group", "message"),
    [
        (np.ones((2, 8)), 5, 32, "5-bit"),
        (np.ones((2, 8)), 4, 12, "groups of 12"),
        (np.ones((2, 8)), 8, 0, "groups of 0"),
        (np.ones(8), 4, 32, "shape"),
        (np.full((2, 8), np.nan), 4, 32, "finite"),
        (np.full((2, 8), 1e30), 4, 32, "fp16 ends"),
    ],
)
def test_matrices_that_cannot_be_quantised_are_refused(matrix, bits, group, message):
    with pytest.raises(ArgumentError, match=message):
        kernels.quantise(matrix, bits, group)


@pytest.mark.parametrize("groups", [1, 65535, 65536, 10**6, 2**31])
def test_spread_covers_all_workgroups_within_the_limits(groups):
    x, y = spread(groups)
    assert x * y >= groups and max(x, y) <= 65535 and (y - 1) * x < groups
