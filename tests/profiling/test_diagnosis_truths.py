"""The classifier against what was written by hand about real kernels, and its ceilings against what happened."""

import re
from functools import cache
from pathlib import Path

import pytest
from truths import A10G, NAIVE, RTX3090, TRUTHS, cutlass_on_rtx5090

from helpers.profiling.counters.ncu_rep import has_wheel
from helpers.profiling.counters.reader import read_kernels
from helpers.profiling.diagnosis import (
    Confidence,
    Context,
    Level,
    State,
    diagnose,
    nvidia_rule,
    nvidia_said,
    rule_of_thumb,
)
from helpers.profiling.diagnosis.context import path_context
from helpers.profiling.recordings import recorded_kernel

PROFILES = Path(__file__).parents[3] / "shared" / "profiles"
REPORTS = (".ncu-rep", ".csv", ".txt")


@cache
def kernels(name):
    return read_kernels(PROFILES / name)


def recorded(name):
    if not (PROFILES / name).is_file():
        pytest.skip("needs the recorded reports of shared/profiles")
    if name.endswith(".ncu-rep") and not has_wheel():
        pytest.skip("needs the wheel ncu-report to read .ncu-rep")
    return kernels(name)


def all_records():
    names = sorted(p.name for p in PROFILES.glob("*") if p.suffix in REPORTS and "timing" not in p.name)
    if not names:
        pytest.skip("needs the recorded reports of shared/profiles")
    return [record for name in names for record in recorded(name)]


@pytest.mark.parametrize("truth", TRUTHS, ids=lambda truth: truth.case)
def test_the_classifier_says_what_is_true(truth):
    record = recorded(truth.file)[truth.place]
    found = diagnose(record, truth.context)
    assert (found.level, found.state, found.stall) == (truth.level, truth.state, truth.stall), truth.why
    assert truth.confidence in (None, found.confidence)
    for start, (low, high) in truth.evidence.items():
        numbers = [item.value.value for item in found.evidence if item.name.startswith(start)]
        assert numbers and low <= numbers[0] <= high, (start, numbers)
    assert any(truth.remedy in remedy.what for remedy in found.remedies) or not truth.remedy


SHIPPED = {
    "rtx3090-uncoalesced": "rtx3090_gemm_uncoalesced",
    "rtx3090-coalesced": "rtx3090_gemm_coalesced",
    "a40-stream": "a40_stream_store",
    "a40-mixed": "a40_int4_tensor_mix",
    "a100-partial-wave": "a100_cutlass_gemm",
    "a10g-failed": "a10g_sgemm_failed",
    "a10g-naive": "a10g_sgemm_naive",
    "a10g-shared-tiles": "a10g_sgemm_shared",
    "a10g-integer-heavy": "a10g_sparse_shared",
    "rtx3070-scan": "rtx3070_scan_barrier",
    "rtx5070-naive-gemm": "rtx5070_gemm_naive",
    "rtx5070-saxpy-with-roof": "rtx5070_saxpy",
    "t4-blocked-copy": "t4_copy_blocked",
}


@pytest.mark.parametrize("truth", [truth for truth in TRUTHS if truth.case in SHIPPED], ids=lambda truth: truth.case)
def test_the_figures_that_ship_with_the_course_say_the_same(truth):
    record = recorded_kernel(SHIPPED[truth.case])
    found = diagnose(record, truth.context)
    assert (found.level, found.state) == (truth.level, truth.state)
    assert (rule_of_thumb(record), nvidia_rule(record)) == (truth.thumb, truth.nvidia)


@pytest.mark.parametrize("truth", TRUTHS, ids=lambda truth: truth.case)
def test_the_other_rules_say_what_they_say(truth):
    record = recorded(truth.file)[truth.place]
    assert rule_of_thumb(record) == truth.thumb and nvidia_rule(record) == truth.nvidia


def test_nvidias_rule_agrees_with_every_message_that_was_recorded():
    records = all_records()
    said = [record for record in records if nvidia_said(record) is not None]
    assert len(said) >= 38
    assert [(r.source.file, r.name) for r in said if nvidia_rule(r) != nvidia_said(r)] == []
    silent = [record for record in records if nvidia_said(record) is None]
    assert all(nvidia_rule(record) is None for record in silent)


def test_fp32_share_agrees_with_the_tools_own_roofline_rule():
    """`The kernel achieved 6% of this device's fp32 peak performance`, and `close to 1%` for less than one."""
    checked = 0
    for record in all_records():
        texts = (text for _, text in record.rules if "fp32 peak performance" in text)
        for percent in (re.search(r"achieved (?: ?close to )?(\d+)%", text)[1] for text in texts):
            shares = [item.value.value for item in diagnose(record).evidence if item.name == "FP32 share"]
            if shares:
                assert abs(shares[0] - int(percent)) <= 0.5
                checked += 1
    assert checked >= 5


def test_fp32_share_agrees_with_the_size_of_the_product():
    """A thread an element of a square product in float: the side is the grid's; peak by lanes · clock."""
    record = recorded(RTX3090)[1]
    side = record.grid[0] * record.block[0]
    assert side == record.grid[1] * record.block[1] == 1024
    flop, peak = 2 * side**3, 82 * 128 * 2 * record.require("sm_clock")
    share = next(item.value.value for item in diagnose(record).evidence if item.name == "FP32 share")
    assert share == pytest.approx(100 * flop / record.require("duration") / peak, rel=0.01)


LADDER = [
    (RTX3090, 0, 1, "coalesce"),
    (A10G, 0, 1, "coalesce"),
    (A10G, 2, 3, "tile in registers"),
]


@pytest.mark.parametrize(("name", "before", "after", "remedy"), LADDER)
def test_what_a_remedy_brought_lies_below_its_predicted_ceiling(name, before, after, remedy):
    """The second kernel is the first one with the remedy: the authors applied it and recorded again."""
    one, two = (recorded(name)[place] for place in (before, after))
    gain = one.require("duration") / two.require("duration")
    ceiling = next(r.ceiling for r in diagnose(one).remedies if remedy in r.what)
    assert 1 < gain <= ceiling.value and ceiling.origin == "predicted"


def test_a_kernel_that_moves_bytes_again_is_first_told_so():
    """Fusion has the higher ceiling, for hardly anything else is busy; what is known to be wasted is the bytes."""
    truth = next(truth for truth in TRUTHS if truth.case == "t4-blocked-copy")
    first, second, *_ = diagnose(recorded_kernel("t4_copy_blocked"), truth.context).remedies
    assert "each byte once" in first.what and second.ceiling.value > 4 * first.ceiling.value


def test_a_coalescing_ceiling_is_nearly_reached():
    one, two = recorded(RTX3090)
    gain = one.require("duration") / two.require("duration")
    assert diagnose(one).remedies[0].ceiling.value == pytest.approx(gain, rel=0.03)


def test_the_thumb_says_compute_where_the_arithmetic_is_a_few_percent_of_peak():
    records = [record for record in all_records() if rule_of_thumb(record) == "compute-bound"]
    assert len(records) == 5
    assert {diagnose(record).level for record in records} == {Level.LSU, Level.ISSUE}


def test_the_naive_product_on_the_rtx5070_is_named_once_its_lsu_is_known():
    """537 million loads at half a load a cycle of each of 48 SMs, at the rated clock: what the LSU would read."""
    record = recorded(NAIVE)[0]
    cycles = 48 * 2.625e9 * record.require("duration")
    share = 100 * record.require("global_load_requests") / (0.5 * cycles)
    known = type(record)(
        record.name,
        record.device,
        metrics={**record.metrics, "sm__inst_executed_pipe_lsu.avg.pct_of_peak_sustained_elapsed": 97.0},
        source=record.source,
    )
    assert 85 < share < 100
    assert diagnose(record).level == Level.SM and diagnose(known).level == Level.LSU


def test_a_tensor_kernel_on_a_geforce_is_no_latency_case():
    """NVIDIA's rule sees 32 % and 28 %; the path with fp32 sums reaches half of that percentage's peak."""
    record = cutlass_on_rtx5090()
    assert str(nvidia_rule(record)) == "latency"
    context = Context(bandwidth=1792e9, peak=209.5e12, peak_clock=2.407e9, flop=12.53e9, tensor_rate=0.5)
    found = diagnose(record, context)
    shares = {item.name: item.value.value for item in found.evidence}
    assert (found.level, found.state) == (Level.TAIL, State.IDLE_SMS)
    assert shares["roof share"] == pytest.approx(100 * 112e12 / (209.5e12 * 2.0 / 2.407), rel=0.01)
    assert 60 < shares["roof share"] < 70 and shares["tensor pipe %"] == pytest.approx(64)
    assert shares["roof share"] / shares["SM active / elapsed"] == pytest.approx(90, abs=1)


def test_without_its_path_the_roof_alone_contradicts_the_percentages():
    context = Context(bandwidth=1792e9, peak=209.5e12, peak_clock=2.407e9, flop=12.53e9)
    found = diagnose(cutlass_on_rtx5090(sm_active_cycles=220e3), context)
    assert (found.level, found.confidence) == (Level.LATENCY, Confidence.LOW)
    assert any("another path's peak" in doubt.text for doubt in found.doubts)


def test_the_path_alone_changes_the_verdict_and_says_so():
    record = cutlass_on_rtx5090(sm_active_cycles=220e3)
    found = diagnose(record, Context(tensor_rate=0.5))
    assert (found.level, found.state, found.confidence) == (Level.TENSOR, State.LEANING, Confidence.LOW)
    assert "against the whole peak it would read latency" in found.doubts[-1].text


def test_the_path_comes_from_the_table_of_peaks():
    context = path_context(cutlass_on_rtx5090(attribute_clock_rate=2.407e9), "bf16", flop=12.53e9)
    assert context.tensor_rate == pytest.approx(0.5) and context.peak == pytest.approx(209.5e12, rel=0.01)
    assert context.flop == 12.53e9 and context.peak_clock == 2.407e9
