"""The roofs of a counted kernel, by hand and by the datasheet, and the pictures of counters."""

import pytest
from truths import made

from helpers.hardware.peaks import peak
from helpers.profiling.counters.record import CounterError
from helpers.profiling.diagnosis.context import DiagnosisError
from helpers.profiling.diagnosis.figures import bars_figure, rule_figure
from helpers.profiling.diagnosis.hierarchy import kernel_points, kernel_roofs, moved_bytes
from helpers.profiling.recordings import recorded_kernel
from helpers.profiling.roofline import above_roof

PRODUCTS = ("rtx3090_gemm_uncoalesced", "rtx3090_gemm_coalesced")


@pytest.mark.parametrize("name", PRODUCTS)
def test_roofs_of_a_report_are_those_of_the_card_at_its_clocks(name):
    record = recorded_kernel(name)
    roofs = kernel_roofs(record)
    lanes, sms = 128, 82
    assert roofs.compute["fp32"] == pytest.approx(2 * lanes * sms * record.require("sm_clock"))
    assert roofs.compute["fp32"] < peak("RTX 3090", "fp32").value  # base clock
    assert roofs.bandwidth["DRAM"] == pytest.approx(384 / 8 * 2 * record.require("dram_clock"))
    assert roofs.bandwidth["L1"] > roofs.bandwidth["L2"] > roofs.bandwidth["DRAM"]


def test_two_runs_on_one_card_give_one_l2_roof():
    """The roof is bytes over their percentage: that of the card, whatever the kernel moved."""
    one, other = (kernel_roofs(recorded_kernel(name)).bandwidth["L2"] for name in PRODUCTS)
    assert one == pytest.approx(other, rel=0.01)


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_has_one_rate_and_an_intensity_a_level(name):
    record = recorded_kernel(name)
    points = {point.level: point for point in kernel_points(record, name)}
    assert set(points) == {"L1", "L2", "DRAM"} and len({point.rate for point in points.values()}) == 1
    flop = 2 * 1024**3
    assert points["DRAM"].rate * record.require("duration") == pytest.approx(flop, rel=0.003)
    read, written = record.require("dram_read_bytes"), record.require("dram_write_bytes")
    assert points["DRAM"].intensity == pytest.approx(flop / (read + written), rel=0.003)
    assert points["L1"].intensity < points["L2"].intensity < points["DRAM"].intensity
    assert above_roof(list(points.values()), kernel_roofs(record)) == ()


def test_coalescing_saves_l1_bytes_and_no_dram_bytes():
    before, after = (moved_bytes(recorded_kernel(name)) for name in PRODUCTS)
    assert before["L1"] / after["L1"] == pytest.approx(16.5 / 2.5, rel=0.01)
    assert before["DRAM"] == pytest.approx(after["DRAM"], rel=0.01)


def test_a_kernel_without_flop_has_no_point_and_a_poor_record_no_roofs():
    assert kernel_points(recorded_kernel("a40_stream_store"), "store") == ()
    with pytest.raises(CounterError, match="no FP32 peak"):
        kernel_roofs(made(duration=1e-3, sm_percent=3))
    with pytest.raises(CounterError, match="duration"):
        kernel_points(made(sm_percent=3), "made")
    assert moved_bytes(made(duration=1.0)) == {}


def test_bars_have_a_panel_a_name_and_the_marks():
    figure = bars_figure(
        {"a": [("x", 3.0), ("y", 2.0)], "b": [("x", 90.0)], "c": [("z", 1.0)]}, "%", (60, 80), shown=1
    )
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in panels] == ["a", "b", "c"]
    assert [[label.get_text() for label in axes.get_yticklabels()] for axes in panels] == [["x"], ["x"], ["z"]]
    assert all(axes.get_xlim()[1] > 80 for axes in panels)
    for nothing in ({}, {"a": []}):
        with pytest.raises(DiagnosisError, match="nothing to draw"):
            bars_figure(nothing, "%")


def test_kernels_on_one_spot_are_drawn_side_by_side():
    figure = rule_figure({"LSU": [(95.0, 4.0)], "FMA": [(95.0, 4.0)], "DRAM": [(10.0, 90.0), (10.2, 90.1)]})
    drawn = {line.get_label(): list(zip(*line.get_data())) for line in figure.axes[0].lines}
    [one], [other] = drawn["LSU"], drawn["FMA"]
    assert one != other and (one[0] + other[0]) / 2 == pytest.approx(95)
    assert drawn["DRAM"] == [pytest.approx((10.0, 90.0)), pytest.approx((10.2, 90.1))]
    with pytest.raises(DiagnosisError, match="no pair of percentages"):
        rule_figure({"broken": [(float("nan"), 3.0)]})
