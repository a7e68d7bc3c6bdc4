import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import pyplot
from matplotlib.colors import to_rgb

from helpers.hardware.roofs import CacheRoofs, Level, Roof
from helpers.measure import Samples
from helpers.profiling.capture import capture
from helpers.profiling.roofline import (
    Point,
    Roofline,
    RooflineError,
    Roofs,
    above_roof,
    cache_figure,
    left_out,
    measured_roofs,
    points_of,
    roofline_figure,
    roofline_words,
)
from helpers.profiling.trace import read_trace

rates = st.floats(1e6, 1e15)


@given(peak=rates, bandwidth=rates, intensity=st.floats(1e-3, 1e4))
@settings(deadline=None)
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
    assert points["addmm"].intensity == pytest.approx(2 * 40 * 50 * 60 / (4 * (2000 + 3000 + 2400 + 60)))
    assert points["bmm"].rate * points["bmm"].seconds == pytest.approx(2 * (2 * 2 * 40 * 50 * 40))
    assert points["silu"].intensity == pytest.approx(4 / 8)
    assert points["add"].intensity == pytest.approx(1 / 12)
    attention = next(point for name, point in points.items() if "attention" in name)
    assert attention.rate * attention.seconds == pytest.approx(2 * 4 * 2 * 4 * 32 * 32 * 8)
    assert list(points.values()) == sorted(points.values(), key=lambda point: -point.seconds)


def test_points_and_what_is_left_out_share_the_operators(trace):
    points, rest = points_of(trace), dict(left_out(trace))
    taken = sum(time for time in trace.self_times.values() if time > 0)
    assert sum(point.seconds for point in points) + sum(rest.values()) == pytest.approx(taken)
    assert {"aten::mm", "aten::silu"}.isdisjoint(rest)
    assert {point.dtype for point in points} == {"fp32"}


MACHINE = Roofs({"fp32": 100.0, "bf16": 400.0}, {"L1": 80.0, "L2": 40.0, "DRAM": 10.0})


def test_a_pair_of_roofs_is_chosen_by_name():
    assert MACHINE.pair("bf16", "L2") == Roofline(400.0, 40.0)
    assert MACHINE.pair("fp32") == Roofline(100.0, 10.0)
    for names, words in ((("int8", "L2"), "no compute roof 'int8'"), (("fp32", "L3"), "no bandwidth roof 'L3'")):
        with pytest.raises(RooflineError, match=words) as caught:
            MACHINE.pair(*names)
        assert "fp32" in caught.value.mend or "DRAM" in caught.value.mend


@pytest.mark.parametrize(
    ("compute", "bandwidth"), [({}, {"DRAM": 1.0}), ({"fp32": 1.0}, {}), ({"fp32": 0}, {"L1": 1.0})]
)
def test_roofs_without_a_roof_are_refused(compute, bandwidth):
    with pytest.raises(RooflineError):
        Roofs(compute, bandwidth)


def test_measured_roofs_carry_every_dtype_and_level():
    def roof(rate, dtype="fp32"):
        return Roof("r", int(rate), "FLOP", dtype, "cpu", 1, Samples((1.0,)))

    caches = CacheRoofs(((8, roof(50)),), (Level("L1", 8, 4, roof(50)), Level("DRAM", 0, 90, roof(9))))
    found = measured_roofs([roof(100), roof(300, "bf16")], caches)
    assert found == Roofs({"fp32": 100.0, "bf16": 300.0}, {"L1": 50.0, "DRAM": 9.0})


def test_a_point_above_its_roof_is_told_with_causes():
    roof = Roofline(100.0, 10.0)
    fine, high = Point("fine", 1.0, 9.0, 1.0, 1), Point("high", 1.0, 20.0, 1.0, 1)
    [sentence] = above_roof([fine, high], roof)
    assert sentence.startswith("high reaches 200 % of its roof") and "cache" in sentence
    [faster] = above_roof([Point("fast", 100.0, 150.0, 1.0, 1)], roof)
    assert "faster than the compute roof" in faster and "dtype" in faster and "cache" not in faster


def test_the_level_that_holds_a_point_is_named():
    [sentence] = above_roof([Point("silu", 1.0, 35.0, 1.0, 1, dtype="fp32")], MACHINE)
    assert "350 % of its roof" in sentence and "(the roof of L2 holds it)" in sentence
    assert above_roof([Point("silu", 1.0, 35.0, 1.0, 1, level="L2")], MACHINE) == ()
    [wrong] = above_roof([Point("mm", 50.0, 150.0, 1.0, 1, dtype="fp32")], MACHINE)
    assert wrong.startswith("mm reaches 150 %") and "another dtype" in wrong
    assert above_roof([Point("mm", 50.0, 150.0, 1.0, 1, dtype="bf16")], MACHINE) == ()
    [nothing] = above_roof([Point("odd", 1.0, 99.0, 1.0, 1, dtype="fp32")], MACHINE)
    assert "holds it" not in nothing


def test_every_roof_and_point_is_in_the_legend():
    points = [Point(f"op{i}", 0.1 * 3**i, 1e6 * (i + 1), 1e-3, 1) for i in range(11)]
    roofs = {f"roof {i}": Roofline(1e9 * i, 1e9 * i**0.5) for i in range(1, 8)}
    figure = roofline_figure(roofs, points)
    words = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert len(words) == 18 and words[0] == "roof 1: ridge 1.0 FLOP/B" and words[7] == "op0, 1.0 ms"
    pyplot.close(figure)


@pytest.mark.parametrize("roofs", [MACHINE, {"one": Roofline(100.0, 10.0)}])
def test_every_point_lies_in_the_figure_and_lines_differ_in_grey(roofs):
    points = [Point("a", 0.001, 1e-3, 1.0, 1), Point("b", 1e4, 90.0, 1.0, 1), Point("c", 1.0, 900.0, 1.0, 1, "L2")]
    figure = roofline_figure(roofs, points)
    axes = figure.axes[0]
    (low, high), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert all(low < point.intensity < high and bottom < point.rate < top for point in points)
    lines = [line for line in axes.lines if len(line.get_xdata()) > 1]
    assert len({(str(line.get_linestyle()), line.get_color()) for line in lines}) == len(lines)
    for line in axes.lines:
        assert len(set(to_rgb(line.get_color()))) == 1, "only greys"
    markers = [line.get_marker() for line in axes.lines if len(line.get_xdata()) == 1]
    assert len(set(markers)) == len(points)
    pyplot.close(figure)


def test_a_hierarchy_is_drawn_as_diagonals_up_to_the_highest_roof_and_horizontals():
    figure = roofline_figure(MACHINE)
    lines = [list(zip(line.get_xdata(), line.get_ydata())) for line in figure.axes[0].lines]
    diagonals = [line for line in lines if line[0][1] != line[1][1]]
    assert {round(y / x, 6) for line in diagonals for x, y in line} == {80.0, 40.0, 10.0}
    assert all(line[1][1] == 400.0 for line in diagonals)
    assert {(line[0][0], line[0][1]) for line in lines if line not in diagonals} == {(100 / 80, 100.0), (5.0, 400.0)}
    words = " ".join(text.get_text() for text in figure.axes[0].texts)
    assert all(name in words for name in (*MACHINE.compute, *MACHINE.bandwidth))
    heights = [text.xyann[1] for text in figure.axes[0].texts if hasattr(text, "xyann")]
    assert len(heights) == 2 and abs(heights[0] - heights[1]) > 0.05
    pyplot.close(figure)


@pytest.mark.parametrize("roofs", [{}, {"one": Roofline(1.0, 1.0)}, MACHINE])
def test_what_cannot_be_drawn_is_named(roofs):
    points = [Point("copy", 0.0, 0.0, 1.0, 1)] if roofs else []
    with pytest.raises(RooflineError, match="copy does 0 FLOP/s" if roofs else "no roof") as caught:
        roofline_figure(roofs, points)
    assert caught.value.mend


def test_words_name_every_roof_and_point():
    text = roofline_words(MACHINE, [Point("mm", 50.0, 75.0, 1.0, 1, dtype="fp32")])
    assert all(name in text for name in (*MACHINE.compute, *MACHINE.bandwidth))
    assert "mm lies at 50 FLOP/B and reaches 75 % of its compute roof" in text
    assert "one with its ridge at 10 FLOP/B" in roofline_words({"one": Roofline(100.0, 10.0)})


def test_the_cache_figure_shows_each_level_at_its_rate():
    def roof(rate):
        return Roof("r", int(rate * 1e9), "B", "fp32", "cpu", 1, Samples((1.0,)))

    sweep = tuple((2**power, roof(rate)) for power, rate in ((14, 200), (18, 150), (26, 30)))
    levels = (Level("L1", 2**15, 2**14, roof(200)), Level("DRAM", 0, 2**26, roof(30)))
    figure = cache_figure(CacheRoofs(sweep, levels))
    curve, *rest = figure.axes[0].lines
    assert list(curve.get_xdata()) == [2**14, 2**18, 2**26] and list(curve.get_ydata()) == [200, 150, 30]
    assert sorted(line.get_ydata()[0] for line in rest if line.get_linestyle() == ":") == [30, 200]
    words = [text.get_text() for text in figure.axes[0].texts]
    assert words == ["L1: 32 KiB", "200 GB/s from L1", "30 GB/s from DRAM"]
    pyplot.close(figure)
