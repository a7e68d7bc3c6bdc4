"""Every kernel family on every driver of this machine, against float64 and the bound of its formula."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import CASES, absent, draw

from helpers.edge import bounds, kernels

AROUND = (1, 2, 63, 64, 65, 1000)
on_any_size = settings(max_examples=4, deadline=None)


def require(device, name):
    if reason := absent(device.info, name):
        pytest.skip(f"{device.info.name}: {reason}")


@pytest.mark.parametrize("name", CASES)
def test_sizes_around_a_workgroup_are_within_the_bound(any_device, name):
    require(any_device, name)
    assert {n: CASES[name](any_device, n) <= 1 for n in AROUND} == dict.fromkeys(AROUND, True)


@pytest.mark.parametrize("name", CASES)
def test_any_size_is_within_the_bound(any_device, name):
    require(any_device, name)

    @on_any_size
    @given(n=st.integers(1, 3000), seed=st.integers(0, 2**32 - 4))
    def within(n, seed):
        assert CASES[name](any_device, n, seed) <= 1

    within()


def test_a_long_sum_takes_two_dispatches_and_a_barrier(device):
    x, result = draw(0, 10**6), device.buffer(1)
    reduction, buffer = kernels.Reduction(device), device.upload(x)
    with device.record() as recording:
        reduction.record(recording, buffer, result)
    run = recording.submit()
    assert len(run.dispatches) == 2 and len(recording.barriers) == 1
    ratio = bounds.error_ratio(result.array(), [x.sum(dtype=float)], bounds.sum_bound(x, reduction.depth(x.size)))
    assert ratio <= 1
    recording.submit()  # the second run reads no leftover of the first
    assert bounds.error_ratio(result.array(), [x.sum(dtype=float)], bounds.sum_bound(x, 100)) <= 1


@pytest.mark.parametrize("way", kernels.Way)
def test_a_long_scan_goes_over_three_levels(device, way):
    x, y = draw(1, 100_003), device.buffer(100_003)
    scan = kernels.Scan(device, way, group=32, items=1)
    scan.run(device.upload(x), y)
    assert len(scan.calls(device.upload(x), y)) == 2 * 4 - 1  # 100 003, 3126, 98 and 4 blocks of 32
    truth = np.cumsum(x, dtype=float)
    assert bounds.error_ratio(y.array(), truth, bounds.scan_bound(x, scan.depth(x.size))) <= 1


def test_a_tree_is_shallower_than_a_row_and_its_bound_tighter():
    x = draw(2, 10**6)
    assert bounds.sum_bound(x, 7 + 8 + 8) < bounds.sum_bound(x) / 10_000


@pytest.mark.parametrize("way", kernels.Way)
def test_maximum_of_minus_infinities_is_one_of_them(device, way):
    x, result = np.full(77, -np.inf, np.float32), device.buffer(1)
    kernels.Reduction(device, way, "maximum").run(device.upload(x), result)
    assert result.array()[0] == -np.inf


def test_softmax_rows_may_be_overwritten_masked_and_far_apart(any_device):
    x = np.array([[0, -np.inf, 3e38, 1], [-np.inf] * 4, [-1e9, -1e9, -1e9, -2e9], [88, 89, -88, 0]], np.float32)
    buffer = any_device.upload(x)
    kernels.Softmax(any_device).run(buffer, buffer)
    assert np.array_equal(buffer.array()[0], [0, 0, 1, 0])
    assert np.isnan(buffer.array()[1]).all()
    assert bounds.error_ratio(buffer.array()[2:], bounds.softmax(x[2:]), bounds.softmax_bound(x[2:], 1)) <= 1


def test_softmax_and_the_norms_have_more_rows_than_one_direction_has_workgroups(device):
    x = draw(3, 70_000, 2)
    buffer, y = device.upload(x), device.buffer(x.shape)
    kernels.Softmax(device, group=8).run(buffer, y)
    assert bounds.error_ratio(y.array(), bounds.softmax(x), bounds.softmax_bound(x, 1)) <= 1
    weight = np.ones(2, np.float32)
    kernels.RmsNorm(device, group=8).run(buffer, device.upload(weight), y)
    assert bounds.error_ratio(y.array(), bounds.rmsnorm(x, weight, 1e-6), bounds.rmsnorm_bound(x, weight, 1e-6)) <= 1


def test_a_row_of_zeros_stays_zero_in_rmsnorm(device):
    y = device.upload(np.ones((1, 50), np.float32))
    kernels.RmsNorm(device).run(device.buffer((1, 50)), device.upload(np.ones(50, np.float32)), y)
    assert not y.array().any()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("rows", "k", "group"), [(1, 1, 32), (33, 96, 32), (130, 100, 8), (64, 257, 64)])
def test_layouts_of_quantised_matrices(device, bits, rows, k, group):
    weights, x, y = kernels.quantise(draw(rows, rows, k), bits, group), draw(k, k), device.buffer(rows)
    matvec = kernels.DequantMatvec(device, bits, group, lanes=8, parts=2, rows=4)
    matvec.run(device.upload(weights.words), device.upload(weights.scales), device.upload(x), y)
    values = weights.values()
    assert bounds.error_ratio(y.array(), values @ x, bounds.dequant_matvec_bound(values, x)) <= 1


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("tokens", "rows", "k", "group"), [(1, 1, 1, 32), (5, 33, 96, 8), (40, 9, 257, 64), (17, 64, 50, 24)]
)
def test_layouts_of_quantised_matrices_with_many_vectors(device, bits, tokens, rows, k, group):
    if device.info.why_not("subgroup_shuffle"):
        pytest.skip(device.info.why_not("subgroup_shuffle"))
    weights, x, y = (
        kernels.quantise(draw(rows, rows, k), bits, group),
        draw(k, tokens, k),
        device.buffer((tokens, rows)),
    )
    matmul = kernels.DequantMatmul(device, bits, group, rows=3, tokens=5)
    matmul.run(device.upload(weights.words), device.upload(weights.scales), device.upload(x), y)
    values = weights.values()
    assert bounds.error_ratio(y.array(), x @ values.T, bounds.dequant_matvec_bound(values, x.T).T) <= 1


@given(bits=st.sampled_from([4, 8]), rows=st.integers(1, 9), k=st.integers(1, 70), seed=st.integers(0, 2**32 - 1))
def test_a_quantised_value_is_within_half_a_step_of_the_true_one(bits, rows, k, seed):
    matrix = draw(seed, rows, k)
    weights = kernels.quantise(matrix, bits, 8)
    scale = weights.scales.T.copy().view(np.float16)[:, ::2].astype(float)
    step = np.repeat(scale, 8, axis=1)[:, :k]
    # The scale itself is rounded to fp16: at the ends of the range, up to 2^bits steps of 2^-11 are lost.
    assert np.all(np.abs(weights.values() - matrix) <= step * (0.5 + 2.0**bits * 2.0**-11 + 2.0**-11))
    assert weights.words.dtype == weights.scales.dtype == np.uint32


def test_what_needs_no_rounding_is_quantised_exactly():
    matrix = np.arange(-7, 9, dtype=float).reshape(1, 16)
    assert np.array_equal(kernels.quantise(matrix, 4, 16).values(), matrix)
    assert not kernels.quantise(np.zeros((3, 40)), 4).values().any()


@pytest.mark.parametrize(("heads", "key_heads", "size"), [(1, 1, 1), (8, 1, 64), (6, 3, 33), (2, 2, 128)])
def test_attention_over_shapes_of_heads(device, heads, key_heads, size):
    q, keys, values = draw(0, heads, size), *draw(1, 2, 50, key_heads, size)
    attention, y = kernels.AttentionDecode(device, heads, key_heads, size), device.buffer(q.shape)
    buffers = [*map(device.upload, (q, keys, values)), device.buffer(1, np.uint32), y]
    for n in (1, 7, 50, 60):
        buffers[3].array()[0] = n
        attention.run(*buffers)
        used = min(n, 50)
        truth = bounds.attention(q, keys[:used], values[:used], attention.scale)
        bound = bounds.attention_bound(q, keys[:used], values[:used], attention.scale, attention.steps(used))
        assert bounds.error_ratio(y.array(), truth, bound) <= 1


def test_one_recording_serves_a_growing_cache(device):
    attention, y = kernels.AttentionDecode(device, 2, 1, 8), device.buffer((2, 8))
    q, keys, values = draw(3, 2, 8), *draw(4, 2, 9, 1, 8)
    length = device.buffer(1, np.uint32)
    with device.record() as recording:
        attention.record(recording, *map(device.upload, (q, keys, values)), length, y)
    for n in range(1, 10):
        length.array()[0] = n
        recording.submit()
        truth = bounds.attention(q, keys[:n], values[:n], attention.scale)
        assert np.allclose(y.array(), truth, rtol=1e-5, atol=1e-6)
