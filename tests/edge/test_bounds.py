import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.edge import bounds

U = 2.0**-24


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def half(x):
    """The same numbers as fp16 would have kept them: far less exact than any fp32 kernel may be."""
    return np.asarray(x, np.float16).astype(np.float32)


def test_gamma_is_the_closed_form_and_grows_with_the_roundings():
    exact = Fraction(1000) * Fraction(U) / (1 - 1000 * Fraction(U))
    assert bounds.gamma(1000) == pytest.approx(float(exact), rel=1e-12)
    assert bounds.gamma(0) == 0
    assert np.all(np.diff(bounds.gamma(np.arange(1000))) > 0)


def test_so_many_roundings_that_nothing_is_bounded_are_refused():
    with pytest.raises(bounds.BoundError, match="bound nothing"):
        bounds.gamma(2**24)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=60), st.randoms())
def test_a_sum_in_any_order_is_within_its_bound_of_the_exact_one(values, random):
    random.shuffle(values)
    total = np.float32(0)
    for value in values:
        total = np.float32(total + np.float32(value))
    exact = sum(map(Fraction, values))
    assert abs(Fraction(float(total)) - exact) <= Fraction(bounds.sum_bound(values)) * Fraction(1 + 1e-12)


@given(st.integers(0, 8), st.integers(0, 2**32 - 1))
def test_a_balanced_tree_is_within_the_bound_of_its_depth(depth, seed):
    x = draw(seed, 2**depth)
    level = x
    while level.size > 1:
        level = level[::2] + level[1::2]
    assert abs(float(level[0]) - math.fsum(x.tolist())) <= bounds.sum_bound(x, depth)


def test_the_bound_of_a_sum_is_reached_up_to_a_small_factor():
    """1 + n·u/…: each addition of half a unit is rounded away, so that the whole tail is lost."""
    x = np.array([1.0] + [U] * 1000, np.float32)
    total = np.float32(0)
    for value in x:
        total += value
    lost = x.sum(dtype=float) - float(total)
    assert 0.9 < lost / bounds.sum_bound(x) <= 1


def test_prefixes_have_the_bounds_of_their_sums():
    x = draw(0, 50)
    each = [bounds.sum_bound(x[: i + 1]) for i in range(50)]
    assert np.allclose(bounds.scan_bound(x), each, rtol=1e-12)
    assert np.all(bounds.scan_bound(x, 4) <= bounds.scan_bound(x))


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_result_that_is_no_number_has_an_infinite_error(wrong):
    assert bounds.error_ratio([1.0, wrong], [1.0, 2.0], [1.0, 1.0]) == np.inf


def test_error_ratio_finds_the_largest_and_wants_exactness_where_the_bound_is_zero():
    assert bounds.error_ratio([1.0, 2.5], [1.0, 2.0], [1.0, 0.25]) == 2
    assert bounds.error_ratio([1.0], [1.0], 0) == 0
    assert bounds.error_ratio([1.0], [1.0 + 1e-12], 0) == np.inf
    assert bounds.error_ratio([1.0], [1.0, 2.0], 1) == np.inf


def test_the_truths_are_those_of_torch_in_float64():
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    x, weight = (torch.from_numpy(draw(seed, *shape).astype(float)) for seed, shape in ((0, (3, 40)), (1, (40,))))
    assert np.allclose(bounds.softmax(x), functional.softmax(x, -1), rtol=1e-13)
    assert np.allclose(bounds.rmsnorm(x, weight, 1e-5), functional.rms_norm(x, (40,), weight, 1e-5), rtol=1e-13)
    q = torch.from_numpy(draw(2, 6, 8).astype(float))
    keys, values = (torch.from_numpy(draw(seed, 30, 2, 8).astype(float)) for seed in (3, 4))
    found = bounds.attention(q, keys, values, 8**-0.5)
    theirs = functional.scaled_dot_product_attention(
        q[:, None], keys.transpose(0, 1), values.transpose(0, 1), enable_gqa=True
    )
    assert np.allclose(found, theirs[:, 0], rtol=1e-12)


def fp32_softmax(x):
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


@settings(max_examples=30)
@given(st.integers(1, 400), st.integers(0, 2**32 - 1))
def test_fp32_in_numpy_is_within_the_bounds_and_fp16_is_not(n, seed):
    x, weight = draw(seed, 2, n) * np.float32(4), draw(seed + 1, n)
    cases = [
        (fp32_softmax(x), bounds.softmax(x), bounds.softmax_bound(x, 1)),
        (
            x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(1e-6)) * weight,
            bounds.rmsnorm(x, weight, 1e-6),
            bounds.rmsnorm_bound(x, weight, 1e-6),
        ),
        (x @ weight[:, None], x.astype(float) @ weight[:, None], bounds.dot_bound(x, weight[:, None])),
        (x @ weight, x.astype(float) @ weight, bounds.dequant_matvec_bound(x, weight)),
    ]
    for result, truth, bound in cases:
        assert bounds.error_ratio(result, truth, bound) <= 1
    if n > 40:
        assert bounds.error_ratio(half(fp32_softmax(x)), *cases[0][1:]) > 1
        assert bounds.error_ratio(half(cases[1][0]), *cases[1][1:]) > 1


@settings(max_examples=30)
@given(st.integers(1, 100), st.integers(0, 2**32 - 1))
def test_fp32_attention_in_numpy_is_within_the_bound_and_fp16_is_not(n, seed):
    q, keys, values = draw(seed, 4, 16), draw(seed + 1, n, 2, 16), draw(seed + 2, n, 2, 16)
    scale = np.float32(0.25)
    wide_keys, wide_values = (bounds.spread_heads(x, 4) for x in (keys, values))
    weights = fp32_softmax(scale * np.einsum("hd,hnd->hn", q, wide_keys))
    found = np.einsum("hn,hnd->hd", weights, wide_values)
    truth, bound = bounds.attention(q, keys, values, 0.25), bounds.attention_bound(q, keys, values, 0.25, 1)
    assert bounds.error_ratio(found, truth, bound) <= 1
    assert bounds.error_ratio(half(found), truth, bound) > 1


def test_masked_values_and_far_ones_do_not_make_a_bound_vacuous():
    x = np.array([[0.0, -np.inf, -1e9, -200.0, 1.0]], np.float32)
    bound = bounds.softmax_bound(x, 1)
    assert np.all(bound[0, 1:4] < 1e-36) and np.all(bound[0, [0, 4]] < 1e-5)


@pytest.mark.parametrize("change", [0, -1])
def test_a_lost_element_is_far_outside_of_each_bound(change):
    """A kernel that forgets its first or last element, the usual tail error, is not excused by rounding."""
    x = draw(5, 300)
    lost = np.delete(x, change)
    assert abs(lost.sum(dtype=float) - x.sum(dtype=float)) > 100 * bounds.sum_bound(x)
    probability = np.insert(bounds.softmax(lost), change if change == 0 else 299, 0.0)
    assert bounds.error_ratio(probability, bounds.softmax(x), bounds.softmax_bound(x, 5)) > 100
