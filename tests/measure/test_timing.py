import statistics

import pytest

from helpers.measure import Samples, time_call


def test_warm_up_calls_are_not_timed():
    calls = []
    samples = time_call(lambda: calls.append("call"), repeats=5, warmup=3, synchronize=lambda: calls.append("sync"))
    assert len(samples.seconds) == 5
    assert calls == ["call"] * 3 + ["sync", "call", "sync"] * 5


def test_statistics_agree_with_the_textbook():
    samples = Samples((0.4, 0.1, 0.2, 0.3, 0.5))
    assert samples.median.value == statistics.median(samples.seconds)
    assert samples.best.value == 0.1
    assert samples.spread == pytest.approx((0.4 - 0.2) / 0.3)
    assert Samples((1.0,)).spread == 0.0


def test_zero_repeats_are_refused():
    with pytest.raises(ValueError, match="at least 1"):
        time_call(lambda: None, repeats=0)
