import numpy as np
import pytest

from helpers.edge.matmul import MatmulError, TiledMatmul, error_ratio, model_matmul, multiply

SIZES = [(1, 1, 1), (16, 16, 16), (45, 37, 50), (17, 1, 33), (3, 130, 2), (64, 48, 80)]


def matrices(m, k, n, seed=0):
    draw = np.random.default_rng(seed)
    return draw.standard_normal((m, k), np.float32), draw.standard_normal((k, n), np.float32)


@pytest.mark.parametrize("tile", [4, 8, 16, 32])
@pytest.mark.parametrize(("m", "k", "n"), SIZES)
def test_the_shader_is_within_the_bound_of_float64(device, m, k, n, tile):
    a, b = matrices(m, k, n)
    c, done = multiply(device, a, b, tile)
    assert error_ratio(a, b, c) <= 1
    assert done.groups == (-(-n // tile), -(-m // tile), 1) and done.local_size == (tile, tile, 1)


@pytest.mark.parametrize(("m", "k", "n"), SIZES)
def test_the_model_is_within_the_same_bound(m, k, n):
    a, b = matrices(m, k, n)
    c, done = multiply(None, a, b)
    assert error_ratio(a, b, c) <= 1 and done is None
    assert np.array_equal(c, model_matmul(a, b))


def test_the_bound_holds_for_float32_numpy_and_not_for_less():
    a, b = matrices(60, 70, 50)
    assert error_ratio(a, b, a @ b) <= 1
    assert error_ratio(a, b, (a.astype(np.float16) @ b.astype(np.float16)).astype(np.float32)) > 1


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e-2])
def test_one_wrong_element_is_caught(wrong):
    a, b = matrices(20, 30, 10)
    c = a @ b
    c[19, 9] = c[19, 9] + wrong
    assert error_ratio(a, b, c) > 1


def test_an_exact_zero_must_stay_zero():
    zero = np.zeros((2, 2), np.float32)
    assert error_ratio(zero, zero, zero) == 0
    assert error_ratio(zero, zero, zero + 1e-30) == np.inf


@pytest.mark.parametrize(
    ("shapes", "dtype", "message"),
    [
        (((4, 5), (6, 7), (4, 7)), np.float32, r"shapes \(4, 5\) · \(6, 7\)"),
        (((4, 5), (5, 7), (7, 4)), np.float32, "shapes"),
        (((4, 5), (5, 7), (4, 7)), np.int32, "dtypes int32"),
        (((4,), (5, 7), (4, 7)), np.float32, "shapes"),
    ],
)
def test_matrices_that_do_not_fit_are_refused(device, shapes, dtype, message):
    buffers = [device.buffer(shape, dtype) for shape in shapes]
    with pytest.raises(MatmulError, match=message):
        TiledMatmul(device).run(*buffers)
