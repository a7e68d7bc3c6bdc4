import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from helpers.profiling import remedies
from helpers.profiling.remedies import RemedyError, amdahl, least_seconds, limiter
from helpers.profiling.roofline import Roofline
from helpers.profiling.work import Work, elementwise, matmul

rates = st.floats(1e9, 1e15)
counts = st.integers(1, 10**12)
roofs = st.builds(Roofline, rates, rates)
works = st.builds(Work, counts, counts)
shares = st.floats(0, 1)


@given(share=shares, speedup=st.floats(0.01, 1e6), seconds=st.floats(1e-3, 1e3))
@settings(deadline=None)
def test_amdahl_is_the_ratio_of_the_two_times(share, speedup, seconds):
    part = share * seconds
    assert amdahl(share, speedup) == pytest.approx(seconds / (seconds - part + part / speedup))


def test_amdahl_at_its_ends():
    assert amdahl(0.0, 100.0) == 1 and amdahl(1.0, 4.0) == 4
    assert amdahl(0.75, math.inf) == 4 and amdahl(1.0, math.inf) == math.inf


@given(work=works, roof=roofs)
@settings(deadline=None)
def test_the_least_time_is_that_of_the_roof(work, roof):
    assert least_seconds(work, roof) == pytest.approx(work.flop / roof.attainable(work.intensity))
    assume(abs(work.intensity / roof.ridge - 1) > 1e-9)
    assert limiter(work, roof) == roof.limit(work.intensity)
    assert limiter(work, roof, launch=1e9) == "launch"


def every_gain(work, roof, share, parts, fraction):
    between = int(fraction * sum(part.bytes for part in parts) / 2)
    weights = int(fraction * work.bytes)
    yield remedies.fusion(parts, between, roof, share)
    yield remedies.quantisation(work, weights, 16, 4.5, roof, share)
    yield remedies.batching(work, 1000, 1, 64, roof, share)
    yield remedies.precision(work, roof, Roofline(2 * roof.peak, roof.bandwidth), 0.5, share)
    yield remedies.alignment(work.flop % 9000 + 1, work.bytes % 9000 + 1, 128, 64, 108, share)
    yield remedies.launches(100, 3, 5e-6, 1e-4, share)


@given(work=works, roof=roofs, share=shares, parts=st.lists(works, min_size=2, max_size=4), fraction=st.floats(0, 1))
@settings(deadline=None)
def test_no_gain_is_a_loss_or_beyond_its_ceiling(work, roof, share, parts, fraction):
    for gain in every_gain(work, roof, share, parts, fraction):
        assert 1 - 1e-6 <= gain.part <= gain.ceiling * (1 + 1e-6), gain
        assert 1 - 1e-6 <= gain.step <= gain.step_ceiling * (1 + 1e-6), gain
        assert gain.step == pytest.approx(amdahl(share, gain.part))
        assert "predicted" in gain.quantity.stamp and gain.why


CPU = Roofline(100e9, 10e9)


def test_fusing_two_pointwise_operators_saves_their_tensor():
    """Residual add, then a scaling: 3 + 2 tensors become 3."""
    n = 10**6
    parts = [elementwise(n, 2, 4), elementwise(n, 1, 4)]
    gain = remedies.fusion(parts, between=4 * n, roof=CPU, share=0.5)
    assert gain.part == pytest.approx(5 / 3) and gain.limiter == "memory"
    assert gain.step == pytest.approx(1 / (0.5 + 0.5 * 3 / 5))
    assert gain.ceiling == pytest.approx((5 * 4 * n / 10e9) / (2 * n / 100e9))


def test_fusing_a_product_with_its_activation_ends_at_the_compute_roof():
    product, activation = matmul(1000, 1000, 1000, 4), elementwise(10**6, 1, 4, 4)
    gain = remedies.fusion([product, activation], between=4 * 10**6, roof=CPU)
    assert gain.limiter == "compute"
    assert gain.part == gain.ceiling == pytest.approx((2e9 / 100e9 + 8e6 / 10e9) / (2.004e9 / 100e9))


def test_small_kernels_gain_their_launches():
    parts = [elementwise(100, 1, 4)] * 10
    gain = remedies.fusion(parts, between=9 * 400, roof=CPU, launch=5e-6)
    assert gain.part == pytest.approx(10) and gain.limiter == "launch"


def test_quantising_the_weights_of_a_single_row_gains_nearly_their_ratio():
    decode = matmul(1, 4096, 4096, 2)
    gain = remedies.quantisation(decode, 4096 * 4096 * 2, 16, 4, Roofline(300e12, 2e12))
    assert 3.99 < gain.part < 4 == gain.ceiling
    prefill = matmul(4096, 4096, 4096, 2)
    assert remedies.quantisation(prefill, 4096 * 4096 * 2, 16, 4, Roofline(300e12, 2e12)).part == 1


def test_a_batch_gains_until_the_ridge():
    roof, weights, item = Roofline(300e12, 2e12), 2 * 4096**2, Work(2 * 4096**2, 4 * 4096)
    small = remedies.batching(item, weights, 1, 32, roof)
    assert 30 < small.part < 32 and small.limiter == "memory"
    large = [remedies.batching(item, weights, 1, batch, roof) for batch in (1024, 4096)]
    assert all(gain.limiter == "compute" for gain in large)
    assert large[0].part == pytest.approx(large[1].part) == pytest.approx(large[0].ceiling)


def test_precision_moves_a_product_by_the_roof_that_limits_it():
    bf16, fp8 = Roofline(989e12, 3.35e12), Roofline(1979e12, 3.35e12)
    assert remedies.precision(matmul(8192, 8192, 8192, 2), bf16, fp8, 0.5).part == pytest.approx(1979 / 989)
    assert remedies.precision(matmul(1, 8192, 8192, 2), bf16, fp8, 0.5).part == pytest.approx(2)
    wrong = remedies.precision(matmul(8192, 8192, 8192, 2), bf16, Roofline(989e12, 3.35e12), 0.5)
    assert wrong.part == 1 and wrong.ceiling == 2


@given(
    m=st.integers(1, 3000),
    n=st.integers(1, 3000),
    tile_m=st.integers(1, 256),
    tile_n=st.integers(1, 256),
    units=st.integers(1, 200),
)
@settings(deadline=None)
def test_alignment_counts_the_results_that_nobody_needs(m, n, tile_m, tile_n, units):
    gain = remedies.alignment(m, n, tile_m, tile_n, units)
    rows, columns = len(range(0, m, tile_m)), len(range(0, n, tile_n))
    waves = len(range(0, rows * columns, units))
    assert gain.part == pytest.approx(waves * units * tile_m * tile_n / (m * n))
    assert gain.part == gain.ceiling >= 1


def test_one_row_too_many_costs_a_wave():
    assert remedies.alignment(12 * 128, 9 * 128, 128, 128, 108).part == 1
    assert remedies.alignment(12 * 128 + 1, 9 * 128, 128, 128, 108).part == pytest.approx(2, rel=0.001)


def test_fewer_launches_gain_until_the_device_is_busy():
    gain = remedies.launches(1000, 1, 5e-6, 2e-3)
    assert gain.part == gain.ceiling == 2.5 and gain.limiter == "device"
    assert remedies.launches(100, 1, 5e-6, 2e-3).part == 1
    assert remedies.launches(1000, 800, 5e-6, 2e-3).limiter == "launch"


@pytest.mark.parametrize(
    "call",
    [
        lambda: amdahl(1.1, 2),
        lambda: amdahl(0.5, 0),
        lambda: amdahl(0.5, math.nan),
        lambda: remedies.fusion([Work(1, 10)], 1, CPU),
        lambda: remedies.fusion([Work(1, 10), Work(1, 10)], 11, CPU),
        lambda: remedies.quantisation(Work(1, 10), 11, 16, 4, CPU),
        lambda: remedies.quantisation(Work(1, 10), 5, 16, 0, CPU),
        lambda: remedies.batching(Work(1, 1), 1, 0, 2, CPU),
        lambda: remedies.precision(Work(1, 1), CPU, CPU, 0),
        lambda: remedies.alignment(0, 1, 1, 1, 1),
        lambda: remedies.launches(1, 1, -1.0, 1.0),
        lambda: remedies.launches(1, 0, 1.0, 0.0),
    ],
)
def test_numbers_that_make_no_sense_are_refused(call):
    with pytest.raises(RemedyError) as caught:
        call()
    assert caught.value.mend
