"""The classifier on either side of each of its thresholds, on records made for it."""

import math

import pytest
from truths import DATA_STAGE, made

from helpers.profiling.breakdown import breakdown
from helpers.profiling.diagnosis import Confidence, Context, DiagnosisError, Host, Level, State, diagnose, host_of
from helpers.profiling.trace import Event, Trace

BASE = {
    "duration": 1e-3,
    "sm_percent": 40,
    "issue_percent": 40,
    "memory_percent": 40,
    "dram_percent": 40,
    "l2_percent": 20,
    "waves": 8,
    "sm_active_cycles": 95,
    "sm_elapsed_cycles": 100,
}


def verdict(context=None, metrics=(), **needs):
    """(level, state) of a record that is BASE but for `needs`; a need that is None is left out."""
    kept = {need: number for need, number in (BASE | needs).items() if number is not None}
    found = diagnose(made(metrics=metrics, **kept), context or Context())
    return found.level, found.state


def whole(context=None, metrics=(), **needs):
    """The diagnosis of such a record."""
    kept = {need: number for need, number in (BASE | needs).items() if number is not None}
    return diagnose(made(metrics=metrics, **kept), context or Context())


def dram(percent, **needs):
    return verdict(dram_percent=percent, memory_percent=percent, **needs)


def test_the_base_is_an_ordinary_latency_case():
    assert verdict() == (Level.LATENCY, State.LATENCY)


@pytest.mark.parametrize(
    ("percent", "state"),
    [
        (59.9, State.LATENCY),
        (60.0, State.LEANING),
        (79.9, State.LEANING),
        (80.0, State.SATURATED),
        (105, State.SATURATED),
    ],
)
def test_states_turn_at_60_and_80(percent, state):
    level, found = dram(percent)
    assert found == state and level == (Level.LATENCY if state is State.LATENCY else Level.DRAM)


@pytest.mark.parametrize(("second", "state"), [(60.0, State.LEANING), (60.1, State.BALANCED)])
def test_balance_is_another_level_within_ten_points(second, state):
    assert dram(70, sm_percent=second, fma_percent=second, issue_percent=30) == (Level.DRAM, state)


def test_a_saturated_level_is_not_called_balanced():
    assert dram(81, sm_percent=80, fma_percent=80) == (Level.DRAM, State.SATURATED)


@pytest.mark.parametrize(("percent", "refused"), [(105.0, False), (105.1, True), (-0.1, True)])
def test_a_percentage_that_cannot_be_is_refused(percent, refused):
    for need in ("xu_percent", "l2_hit_percent", "occupancy_achieved"):
        assert (verdict(**{need: percent})[1] is State.REFUSED) == refused, need


def test_a_part_of_a_breakdown_that_cannot_be_is_refused():
    assert verdict(metrics={DATA_STAGE: 106.0})[1] is State.REFUSED


@pytest.mark.parametrize(("duration", "refused"), [(3.0e-6, False), (2.99e-6, True), (0.0, True), (-1.0, True)])
def test_a_kernel_below_three_microseconds_is_refused(duration, refused):
    assert (verdict(duration=duration)[1] is State.REFUSED) == refused


def test_a_short_kernel_of_less_than_a_wave_is_a_small_grid_by_its_launch_alone():
    found = whole(duration=1e-6, waves=0.99, dram_percent=99, memory_percent=99)
    assert (found.level, found.state, found.confidence) == (Level.GRID, State.IDLE_SMS, Confidence.MEDIUM)
    assert found.remedies[0].ceiling.value == 1.0
    assert verdict(duration=1e-6, waves=1.0)[1] is State.REFUSED


@pytest.mark.parametrize(
    "need", ["duration", "sm_percent", "memory_percent", "dram_percent", "l1_percent", "l2_percent"]
)
def test_a_failed_collection_is_refused_by_name(need):
    found = whole(**{need: math.nan})
    assert found.state is State.REFUSED and need in found.refusal and "NaN" in found.refusal


@pytest.mark.parametrize(("clock", "refused"), [(0.249, True), (0.251, False), (1.149, False), (1.151, True)])
def test_an_sm_clock_off_its_rating_is_refused(clock, refused):
    found = whole(sm_clock=clock * 1.41e9, attribute_clock_rate=1.41e9)
    assert (found.state is State.REFUSED) == refused


@pytest.mark.parametrize(("clock", "refused"), [(0.749, True), (0.751, False), (1.249, False), (1.251, True)])
def test_a_memory_clock_off_its_rating_is_refused(clock, refused):
    found = whole(dram_clock=clock * 0.877e9, attribute_memory_clock_rate=0.877e9)
    assert (found.state is State.REFUSED) == refused and ("DRAM clock" in found.refusal) == refused


@pytest.mark.parametrize(
    ("waves", "level"),
    [
        (0.99, Level.GRID),
        (1.0, Level.LATENCY),
        (1.49, Level.TAIL),
        (1.5, Level.LATENCY),
        (2.2, Level.TAIL),
        (2.25, Level.LATENCY),
        (3.01, Level.LATENCY),
    ],
)
def test_small_grids_and_tails_turn_at_their_waves(waves, level):
    if waves == 1.5:
        assert waves / math.ceil(waves) == 0.75
    assert verdict(waves=waves)[0] == level


@pytest.mark.parametrize(("active", "level"), [(74.9, Level.TAIL), (75.0, Level.LATENCY)])
def test_idle_sms_turn_at_three_quarters(active, level):
    assert verdict(sm_active_cycles=active)[0] == level


def test_elapsed_cycles_are_clock_times_duration_where_they_were_not_counted():
    needs = {"sm_elapsed_cycles": None, "sm_clock": 1e9, "duration": 1e-3}
    assert verdict(sm_active_cycles=0.74e6, **needs)[0] is Level.TAIL
    assert verdict(sm_active_cycles=0.76e6, **needs)[0] is Level.LATENCY


def test_a_level_at_its_peak_over_the_whole_duration_leaves_no_tail_to_blame():
    assert dram(80, waves=0.5) == dram(80, waves=1.1) == (Level.DRAM, State.SATURATED)
    assert dram(79, waves=0.5)[0] is Level.GRID


def test_a_persistent_kernel_is_a_small_grid_with_a_doubt():
    busy, idle = whole(waves=0.5, sm_active_cycles=95), whole(waves=0.5, sm_active_cycles=60)
    assert busy.level is idle.level is Level.GRID
    assert (busy.confidence, idle.confidence) == (Confidence.MEDIUM, Confidence.HIGH)
    assert "persistent" in busy.doubts[0].text


@pytest.mark.parametrize(
    ("busy", "kernel", "launch", "level"),
    [
        (0.69, 1e-4, 1e-5, Level.HOST),
        (0.70, 1e-4, 1e-5, Level.DRAM),
        (0.99, 0.9e-5, 1e-5, Level.HOST),
        (0.99, 1e-5, 1e-5, Level.DRAM),
    ],
)
def test_a_device_that_waits_for_its_host_comes_before_any_level(busy, kernel, launch, level):
    found = whole(Context(host=Host(busy, kernel, launch)), dram_percent=95, memory_percent=95)
    assert found.level is level and (found.state is State.OVERHEAD) == (level is Level.HOST)


def test_the_host_comes_from_a_breakdown_of_the_trace():
    events = [
        Event("aten::mm", "cpu_op", 0, 1e-4, (0, 0)),
        Event("cudaLaunchKernel", "cuda_runtime", 0, 2e-5, (0, 0)),
    ]
    kernels = [Event("k", "kernel", at * 1e-3, 1e-5, (0, 7)) for at in range(1, 4)]
    host = host_of(breakdown(Trace((*events, *kernels)), (0.0, 4e-3)))
    assert host.busy == pytest.approx(3e-5 / 4e-3) and host.kernel == pytest.approx(1e-5)
    with pytest.raises(DiagnosisError, match="no kernel ran"):
        host_of(breakdown(Trace(tuple(events)), (0.0, 1e-4)))


def test_an_invalid_record_comes_before_the_host():
    assert verdict(Context(host=Host(0.1, 1e-6, 1e-5)), duration=math.nan)[1] is State.REFUSED


@pytest.mark.parametrize(("bytes_moved", "redundant"), [(1.5e6, False), (1.51e6, True)])
def test_traffic_is_redundant_above_one_and_a_half(bytes_moved, redundant):
    context = Context(compulsory_bytes=1e6)
    found = whole(context, dram_percent=90, memory_percent=90, dram_bytes=bytes_moved)
    assert any("each byte once" in remedy.what for remedy in found.remedies) == redundant
    assert any(item.name == "measured / compulsory bytes" for item in found.evidence)


@pytest.mark.parametrize(("sectors", "scattered"), [(16, False), (17, True)])
def test_loads_are_scattered_above_sixteen_sectors_a_request(sectors, scattered):
    counts = {"global_load_sectors": sectors * 1e6, "global_load_requests": 1e6}
    found = whole(dram_percent=90, memory_percent=90, **counts)
    assert any("coalesce" in remedy.what for remedy in found.remedies) == scattered


def test_waste_that_was_counted_comes_before_larger_ceilings():
    counts = {"global_load_sectors": 17e6, "global_load_requests": 1e6, "dram_bytes": 4e6}
    use = {"dram_percent": 90, "memory_percent": 90, "fma_percent": 2, "sm_percent": 2}
    found = whole(Context(compulsory_bytes=1e6), **use, **counts)
    order = [(remedy.what.split()[0], remedy.ceiling.value) for remedy in found.remedies]
    assert order == [("move", 4), ("coalesce:", 100 / 40), ("fuse", 50), ("store", 2)], "issue slots are at 40 %"
    told = [remedy.what.split()[0] for remedy in whole(Context(compulsory_bytes=4e6), **use, dram_bytes=4e6).remedies]
    assert told == ["fuse", "store"], "nothing is wasted"


STALLS = ("long_scoreboard", "barrier", "lg_throttle", "mio_throttle", "math_pipe_throttle", "no_instruction", "wait")


@pytest.mark.parametrize("reason", STALLS)
def test_latency_is_split_by_the_longest_stall(reason):
    cycles = {f"stall_{name}": 1.0 for name in STALLS} | {f"stall_{reason}": 14.0, "stall_selected": 40.0}
    found = whole(**cycles)
    assert (found.level, found.stall, found.confidence) == (Level.LATENCY, reason, Confidence.HIGH)
    share = 14 / (14 + 40 + len(STALLS) - 1)
    assert found.remedies[0].ceiling.value == pytest.approx(min(1 / (1 - share), 100 / 40))


def test_latency_without_stalls_is_less_certain():
    assert whole().confidence is Confidence.MEDIUM and whole().stall == ""


def test_latency_with_a_part_of_the_stalls_is_less_certain():
    known = whole(stall_wait=5, stall_selected=1, warp_latency=6.2)
    partly = whole(stall_wait=3, stall_selected=1, warp_latency=6.2)
    assert (known.confidence, partly.confidence) == (Confidence.HIGH, Confidence.MEDIUM)


@pytest.mark.parametrize("need", ["sm_percent", "memory_percent"])
def test_a_side_that_was_not_counted_is_refused_unless_the_other_is_saturated(need):
    low = whole(**{need: None})
    assert low.state is State.REFUSED and need in low.refusal
    side = (
        {"dram_percent": 90, "memory_percent": 90} if need == "sm_percent" else {"fma_percent": 90, "sm_percent": 90}
    )
    high = whole(**(side | {need: None}))
    assert high.state is State.SATURATED and high.confidence is Confidence.MEDIUM


def test_without_waves_latency_is_not_told_from_a_small_grid():
    found = whole(waves=None)
    assert found.state is State.REFUSED and "waves" in found.refusal
    leaning = whole(waves=None, dram_percent=70, memory_percent=70)
    assert (leaning.level, leaning.confidence) == (Level.DRAM, Confidence.LOW)


def test_a_total_above_all_its_parts_is_not_given_to_one_of_them():
    found = whole(memory_percent=90)
    assert (found.level, found.confidence) == (Level.MEMORY, Confidence.LOW) and found.remedies == ()
    found = whole(sm_percent=90)
    assert (found.level, found.confidence) == (Level.SM, Confidence.LOW)


@pytest.mark.parametrize(("above", "level"), [(2.0, Level.DRAM), (2.1, Level.MEMORY)])
def test_a_total_may_be_two_points_above_its_parts(above, level):
    assert whole(dram_percent=85, memory_percent=85 + above).level is level


def test_l1_and_lsu_are_told_apart_by_their_parts():
    """The same total of 90 %: by requests, by the data stage, or unknown."""
    elapsed = {"l1tex__throughput.avg.pct_of_peak_sustained_elapsed": 90.0}
    common = {"memory_percent": 90, "metrics": elapsed}
    assert whole(**common, lsu_percent=90, sm_percent=90).level is Level.LSU
    assert whole(**common, lsu_percent=12).level is Level.L1
    assert whole(**common).level is Level.L1_OR_LSU
    assert whole(**common, sm_percent=90).level is Level.LSU, "equal totals count the one unit that both hold"


def test_l1_over_active_cycles_is_scaled_to_the_elapsed_ones():
    found = whole(l1_percent=70, memory_percent=56, sm_active_cycles=80)
    l1 = next(item.value.value for item in found.evidence if item.name.startswith("L1"))
    assert l1 == pytest.approx(56)


@pytest.mark.parametrize(("second", "confidence"), [(88.1, Confidence.MEDIUM), (87.9, Confidence.HIGH)])
def test_two_levels_within_two_points_are_less_certain(second, confidence):
    assert whole(dram_percent=90, memory_percent=90, fma_percent=second, sm_percent=second).confidence is confidence


def test_near_a_threshold_the_verdict_is_less_certain():
    def certain(percent):
        return whole(dram_percent=percent, memory_percent=percent, stall_wait=1).confidence is Confidence.HIGH

    assert [certain(p) for p in (57.9, 58.1, 61.9, 62.1, 77.9, 78.1, 81.9, 82.1)] == [
        True, False, False, True, True, False, False, True,
    ]  # fmt: skip


def test_bytes_become_a_percentage_when_a_bandwidth_is_known():
    needs = {"dram_percent": None, "memory_percent": None, "dram_read_bytes": 6e8, "dram_write_bytes": 3e8}
    assert verdict(**needs)[1] is State.REFUSED
    found = whole(Context(bandwidth=1e12), **needs)
    assert (found.level, found.state) == (Level.DRAM, State.SATURATED)
    assert found.evidence[0].value.value == pytest.approx(90)


@pytest.mark.parametrize(("rate", "state"), [(0.751, State.LEANING), (0.749, State.SATURATED)])
def test_the_tensor_pipe_counts_against_what_its_path_reaches(rate, state):
    needs = {"tensor_percent": 60, "sm_percent": 60}
    assert verdict(Context(tensor_rate=rate), **needs) == (Level.TENSOR, state)


def test_the_tensor_pipe_counts_against_the_best_measured_rate():
    found = whole(Context(tensor_rate=1.0, achievable=0.75), tensor_percent=70, sm_percent=70)
    assert (found.state, found.confidence) == (State.SATURATED, Confidence.LOW)
    assert "its path reaches 75 %" in found.doubts[-1].text


def test_a_tensor_pipe_above_what_its_path_can_reach_is_doubted():
    found = whole(Context(tensor_rate=0.5), tensor_percent=90, sm_percent=90)
    assert found.confidence is Confidence.LOW and any("180 %" in doubt.text for doubt in found.doubts)


def test_a_point_above_its_roof_is_doubted():
    needs = {"dram_percent": 90, "memory_percent": 90, "dram_bytes": 1e9}
    fine = whole(Context(bandwidth=1e12, peak=1e13, flop=1e9), **needs)
    above = whole(Context(bandwidth=0.9e12, peak=1e13, flop=1e9), **needs)
    assert (fine.confidence, above.confidence) == (Confidence.HIGH, Confidence.LOW)


@pytest.mark.parametrize(("flop", "confidence"), [(0.51e10, Confidence.HIGH), (0.49e10, Confidence.LOW)])
def test_a_full_math_pipe_must_reach_half_of_its_roof(flop, confidence):
    context = Context(bandwidth=1e12, peak=1e13, flop=flop)
    assert whole(context, fma_percent=90, sm_percent=90, dram_bytes=1e7).confidence is confidence


def test_a_kernel_without_flop_has_no_place_under_a_flop_roof():
    found = whole(Context(bandwidth=1e12, peak=1e13, flop=0), dram_bytes=1e8)
    assert not any(item.name == "roof share" for item in found.evidence)


@pytest.mark.parametrize(
    "wrong",
    [
        {"bandwidth": 0},
        {"peak": math.inf},
        {"flop": -1},
        {"flop": math.nan},
        {"compulsory_bytes": 0},
        {"tensor_rate": 1.1},
        {"achievable": -0.5},
    ],
)
def test_a_context_that_cannot_be_is_named(wrong):
    with pytest.raises(DiagnosisError) as caught:
        Context(**wrong)
    assert next(iter(wrong)) in str(caught.value) and caught.value.mend


@pytest.mark.parametrize("wrong", [(-0.1, 1, 1), (1.1, 1, 1), (math.nan, 1, 1), (0.5, 0, 1), (0.5, 1, -1)])
def test_a_host_that_cannot_be_is_named(wrong):
    with pytest.raises(DiagnosisError):
        Host(*wrong)


def test_evidence_carries_the_stamp_of_the_record():
    found = whole(dram_percent=90, memory_percent=90)
    stamps = {item.value.stamp for item in found.evidence}
    assert stamps == {"[recorded: NVIDIA A100 80GB PCIe, 2026-12-01, ncu 2026.1]"}
    assert all(remedy.ceiling.stamp.startswith("[predicted") for remedy in found.remedies)
