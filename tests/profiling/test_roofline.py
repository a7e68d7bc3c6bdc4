import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import pyplot
from torch.utils.flop_counter import FlopCounterMode

from helpers.profiling import work
from helpers.profiling.capture import capture
from helpers.profiling.roofline import Point, Roofline, RooflineError, above_roof, points_of, roofline_figure
from helpers.profiling.trace import read_trace

rates = st.floats(1e6, 1e15)


@given(peak=rates, bandwidth=rates, intensity=st.floats(1e-3, 1e4))
def test_both_roofs_hold_and_meet_at_the_ridge(peak, bandwidth, intensity):
    roof = Roofline(peak, bandwidth)
    attainable = roof.attainable(intensity)
    assert attainable <= peak and attainable <= bandwidth * intensity * (1 + 1e-12)
    assert attainable in (peak, bandwidth * intensity)
    assert roof.attainable(roof.ridge) == pytest.approx(peak)
    assert (roof.limit(intensity) == "memory") == (intensity < roof.ridge)


@pytest.mark.parametrize(("peak", "bandwidth"), [(0, 1), (1, -1), (float("nan"), 1), (1, float("inf"))])
def test_a_roof_that_is_no_positive_number_is_named(peak, bandwidth):
    with pytest.raises(RooflineError, match="roof is"):
        Roofline(peak, bandwidth)


def counted(call):
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def test_flop_agree_with_torchs_counter():
    a, b = torch.rand(5, 7), torch.rand(7, 3)
    assert work.matmul(5, 7, 3, 4).flop == counted(lambda: a @ b)
    x, y = torch.rand(2, 5, 7), torch.rand(2, 7, 3)
    assert work.matmul(5, 7, 3, 4, batch=2).flop == counted(lambda: x @ y)
    q, k = torch.rand(2, 3, 8, 4, device="meta"), torch.rand(2, 3, 6, 4, device="meta")
    by_matmuls = counted(lambda: (q @ k.transpose(-1, -2)) @ k)
    assert work.attention(2, 3, 8, 6, 4, 4).flop == by_matmuls


def test_bytes_are_those_of_the_tensors():
    a, b = torch.rand(5, 7), torch.rand(7, 3)
    assert work.matmul(5, 7, 3, 4).bytes == a.nbytes + b.nbytes + (a @ b).nbytes
    q, k = torch.rand(2, 3, 8, 4), torch.rand(2, 3, 6, 4)
    assert work.attention(2, 3, 8, 6, 4, 4).bytes == 2 * q.nbytes + 2 * k.nbytes
    assert work.elementwise(100, 2, 4).bytes == 3 * 400


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    a, b, x = torch.rand(40, 50), torch.rand(50, 60), torch.rand(2, 40, 50)
    bias, q = torch.rand(60), torch.rand(2, 4, 32, 8)

    def step():
        a @ b
        torch.addmm(bias, a, b)
        x @ x.transpose(1, 2)
        torch.nn.functional.silu(a) + a
        torch.nn.functional.scaled_dot_product_attention(q, q, q)

    return read_trace(capture(step, tmp_path_factory.mktemp("t") / "t.json", steps=2, warmup=1))


def test_points_carry_the_work_of_the_operators(trace):
    points = {point.name: point for point in points_of(trace)}
    assert points["mm"].intensity == pytest.approx(2 * 40 * 50 * 60 / (4 * (2000 + 3000 + 2400)))
    assert points["mm"].rate * points["mm"].seconds == pytest.approx(2 * (2 * 40 * 50 * 60))
    assert points["addmm"].intensity == points["mm"].intensity
    assert points["bmm"].rate * points["bmm"].seconds == pytest.approx(2 * (2 * 2 * 40 * 50 * 40))
    assert points["silu"].intensity == pytest.approx(4 / 8)
    assert points["add"].intensity == pytest.approx(1 / 12)
    attention = next(point for name, point in points.items() if "attention" in name)
    assert attention.rate * attention.seconds == pytest.approx(2 * 4 * 2 * 4 * 32 * 32 * 8)
    assert list(points.values()) == sorted(points.values(), key=lambda point: -point.seconds)


def test_a_point_above_its_roof_is_told_with_causes():
    roof = Roofline(100.0, 10.0)
    fine, high = Point("fine", 1.0, 9.0, 1.0, 1), Point("high", 1.0, 20.0, 1.0, 1)
    [sentence] = above_roof([fine, high], roof)
    assert sentence.startswith("high reaches 200 % of its roof") and "cache" in sentence


def test_every_roof_and_point_is_in_the_legend():
    points = [Point(f"op{i}", 0.1 * 3**i, 1e6 * (i + 1), 1e-3, 1) for i in range(11)]
    roofs = {"one core": Roofline(1e9, 1e9), "two cores": Roofline(2e9, 1.5e9)}
    figure = roofline_figure(roofs, points)
    words = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert len(words) == 13 and words[0] == "one core: ridge 1.0 FLOP/B" and words[2] == "op0, 1.0 ms"
    low, high = figure.axes[0].get_xlim()
    assert all(low < point.intensity < high for point in points)
    pyplot.close(figure)


def test_a_figure_without_a_roof_is_refused():
    with pytest.raises(RooflineError, match="no roof"):
        roofline_figure({}, [])
