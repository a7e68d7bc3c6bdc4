"""Busy, idle and overlap against HolisticTraceAnalysis and against counting on a grid."""

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_kit import DEVICE_WORK, call, event, kernel, op, raw, recorded, step, write

from helpers.profiling.breakdown import BUSY, HOST_BOUND, UNKNOWN, BreakdownError, breakdown, device_window
from helpers.profiling.capture import capture
from helpers.profiling.trace import read_trace

# What HolisticTraceAnalysis 0.5.0 (pandas 2.3.3) says of each trace as `for_hta` prepares it: idle, compute and
# all of the device's time in nanoseconds, the overlap in percent of the communication (nan without any), and the
# idle nanoseconds of each stream with the part that it calls host wait. Run once in an environment of its own;
# `test_a_live_hta_says_the_same` runs it again where it can be imported.
HTA = {
    "hta_a100_alexnet": (12_854_103_000, 10_630_000, 12_920_244_000, float("nan")),
    "hta_dist_rank0": (675_191_000, 210_320_000, 1_222_847_000, 14.95),
    "hta_dist_rank1": (651_136_000, 271_973_000, 1_231_186_000, 19.93),
    "tracelens_h100_bert_small": (3_598_388, 307_197, 3_907_825, float("nan")),
    "tracelens_mi300x_compile_triton": (11, 12_549_021, 12_549_032, float("nan")),
}
HTA_STREAMS = {
    "hta_a100_alexnet": {7: (12_855_111_000, 12_855_007_000), 20: (12_011_721_000, 12_011_718_000)},
    "hta_dist_rank0": {
        23: (1_214_987_000, 1_214_793_000),
        84: (798_049_000, 794_901_000),
        25: (660_568_000, 560_120_000),
        7: (1_000_017_000, 397_917_000),
        203: (558_073_000, 558_073_000),
    },
    "hta_dist_rank1": {
        23: (1_222_690_000, 1_222_526_000),
        25: (648_287_000, 556_447_000),
        7: (935_926_000, 407_794_000),
        84: (778_436_000, 715_850_000),
        203: (559_033_000, 559_033_000),
    },
    "tracelens_h100_bert_small": {7: (3_598_388, 3_598_388)},
    "tracelens_mi300x_compile_triton": {0: (11, 0)},
}


def for_hta(name):
    """The trace in a form that HTA reads exactly.

    Its reader cuts nanoseconds off, so times are given to it times 1000; it takes whatever has a stream for
    device work, so waits for a stream (`cuda_sync`) and host operators of Triton lose theirs.
    """
    content = raw(name) | {"distributedInfo": {"rank": 0}}
    for one in content["traceEvents"]:
        one |= {key: round(1000 * one[key]) for key in ("ts", "dur") if key in one}
        if one.get("cat") not in DEVICE_WORK:
            (one.get("args") or {}).pop("stream", None)
    return content


@pytest.mark.parametrize("name", HTA)
def test_busy_idle_and_overlap_are_those_of_hta(name):
    trace = read_trace(recorded(name))
    found = breakdown(trace, device_window(trace))
    idle, compute, whole, overlap = HTA[name]
    assert 1e9 * found.seconds == pytest.approx(whole, rel=1e-9)
    assert 1e9 * found.idle == pytest.approx(idle, rel=0.01, abs=1)
    assert 1e9 * found.busy == pytest.approx(whole - idle, rel=0.01)
    assert 1e9 * found.compute == pytest.approx(compute, rel=0.01)
    assert (100 * found.overlap_share or float("nan")) == pytest.approx(overlap, rel=0.01, nan_ok=True)


@pytest.mark.parametrize("name", HTA)
def test_each_stream_waits_as_hta_says(name):
    trace = read_trace(recorded(name))
    places = {int(place.name.split()[-1]): place for place in breakdown(trace, device_window(trace)).places}
    assert places.keys() == HTA_STREAMS[name].keys()
    for stream, (idle, host_wait) in HTA_STREAMS[name].items():
        assert 1e9 * places[stream].idle == pytest.approx(idle, rel=0.01, abs=1), stream
        assert 1e9 * places[stream].host_wait == pytest.approx(host_wait, rel=0.01, abs=1), stream


@pytest.mark.parametrize("name", HTA)
def test_a_live_hta_says_the_same(name, tmp_path, monkeypatch):
    pytest.importorskip("hta", reason="HolisticTraceAnalysis is not installed here")
    from hta.trace_analysis import TraceAnalysis

    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(for_hta(name)))
    analysis = TraceAnalysis({0: str(path)}, str(tmp_path), include_last_profiler_step=True)
    row = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    overlap = analysis.get_comm_comp_overlap(visualize=False).iloc[0]["comp_comm_overlap_pctg"]
    said = (row["idle_time(us)"], row["compute_time(us)"], row["kernel_time(us)"], overlap)
    assert said == pytest.approx(HTA[name], nan_ok=True)
    waits = analysis.get_idle_time_breakdown(ranks=[0], visualize=False)[0]
    for stream, (idle, host_wait) in HTA_STREAMS[name].items():
        mine = waits[waits.stream == stream]
        assert mine.idle_time.sum() == idle
        assert mine[mine.idle_category == "host_wait"].idle_time.sum() == host_wait


NAMES = {"gemm": "kernel", "ncclDevKernel_AllReduce": "kernel", "Memcpy HtoD": "gpu_memcpy"}
works = st.lists(
    st.tuples(
        st.sampled_from(sorted(NAMES)), st.integers(0, 40), st.integers(1, 12), st.integers(0, 2), st.integers(0, 15)
    ),
    min_size=1,
    max_size=12,
)


def as_events(work):
    """Each piece of work with the call that launched it, `ahead` microseconds earlier."""
    for number, (name, start, length, stream, ahead) in enumerate(work, 1):
        yield call("cudaLaunchKernel", start - ahead, start - ahead + 1, correlation=number)
        yield kernel(name, start, start + length, stream=stream, cat=NAMES[name], correlation=number)


ORIGIN = event("user_annotation", "origin", -30, -29)


def seconds(microseconds):
    return (microseconds + 30) / 1e6


def ticks(work, kind=""):
    return {t for name, start, length, *_ in work if kind in name for t in range(start, start + length)}


@given(works, st.integers(0, 20), st.integers(1, 40))
def test_times_are_those_counted_on_a_grid(tmp_path_factory, work, first, length):
    trace = read_trace(write(tmp_path_factory.getbasetemp() / "grid.json", [ORIGIN, *as_events(work)]))
    window = range(first, first + length)
    found = breakdown(trace, (seconds(first), seconds(first + length)))
    inside = set(window)
    compute, talk = ticks(work, "gemm") & inside, ticks(work, "nccl") & inside
    expected = {
        "seconds": length,
        "busy": len(ticks(work) & inside),
        "compute": len(compute),
        "communication": len(talk),
        "copies": len(ticks(work, "Memcpy") & inside),
        "overlap": len(compute & talk),
        "exposed": len(talk - compute),
        "idle": len(inside - ticks(work)),
    }
    assert {name: round(1e6 * getattr(found, name), 6) for name in expected} == expected


@given(works)
def test_idle_time_waits_for_the_host_when_its_end_was_launched_within_it(tmp_path_factory, work):
    trace = read_trace(write(tmp_path_factory.getbasetemp() / "waits.json", [ORIGIN, *as_events(work)]))
    begin, end = -20, 60
    busy, waits, gap = ticks(work), 0, []
    for tick in range(begin, end + 1):
        if tick not in busy and tick < end:
            gap.append(tick)
        elif gap:
            launched = [start - ahead for _, start, _, _, ahead in work if start == tick]
            waits += len(gap) if not launched or launched[0] > gap[0] else 0
            gap = []
    found = breakdown(trace, (seconds(begin), seconds(end)))
    if len({start for _, start, *_ in work}) == len(work):  # otherwise the order of equal starts decides
        assert round(1e6 * found.host_wait) == waits
    assert found.host_wait <= found.idle + 1e-12


def test_short_kernels_behind_long_launches_are_launch_bound(tmp_path):
    work = [
        each
        for n in range(1, 11)
        for each in (
            call("cudaLaunchKernel", 10 * n, 10 * n + 6, correlation=n),
            kernel("k", 10 * n + 5, 10 * n + 7, correlation=n),
        )
    ]
    found = breakdown(read_trace(write(tmp_path / "t.json", [step(3, 0, 110), *work])))
    assert (found.kernels, found.short_kernels, found.launch_bound) == (10, 10, True)
    assert (found.kernel, found.launch, found.queue) == pytest.approx((2e-6, 6e-6, 5e-6))
    assert found.verdict == HOST_BOUND and found.busy_share == pytest.approx(20 / 110)
    assert found.host_wait == pytest.approx(found.idle)
    assert [(e.what, round(e.value, 9)) for e in found.evidence[:3]] == [
        ("device busy", round(100 * 20 / 110, 9)),
        ("idle time that waits for the host", 100.0),
        ("kernels shorter than their launch", 100.0),
    ]


@pytest.mark.parametrize(("busy", "verdict"), [(69, HOST_BOUND), (70, BUSY), (100, BUSY)])
def test_the_verdict_turns_at_seventy_percent(tmp_path, busy, verdict):
    events = [step(1, 0, 100), kernel("k", 0, busy)]
    assert breakdown(read_trace(write(tmp_path / "t.json", events))).verdict == verdict


def test_the_window_is_that_of_the_steps_and_of_the_work_they_started(tmp_path):
    events = [op("aten::before", 0, 5), step(1, 10, 20), step(2, 20, 30), kernel("k", 25, 50)]
    found = breakdown(read_trace(write(tmp_path / "t.json", events)))
    assert (found.start, found.seconds) == pytest.approx((10e-6, 40e-6))
    unmarked = breakdown(read_trace(write(tmp_path / "t.json", [events[0], events[3]])))
    assert (unmarked.start, unmarked.seconds) == pytest.approx((0, 50e-6))


def test_on_a_cpu_operators_take_the_place_of_kernels(tmp_path):
    events = [
        step(1, 0, 100),
        op("aten::mm", 10, 30),
        op("aten::inner", 12, 14),
        op("autograd::engine::evaluate_function: X", 0, 90, tid=2),
        op("aten::add", 25, 40, tid=2),
        event("user_annotation", "gloo:all_reduce", 35, 60, tid=3),
    ]
    found = breakdown(read_trace(write(tmp_path / "t.json", events)))
    assert not found.on_device and found.kernels == 0 and found.verdict == HOST_BOUND
    assert (found.busy, found.compute, found.communication, found.overlap) == pytest.approx(
        (50e-6, 30e-6, 25e-6, 5e-6)
    )
    assert found.host_wait == pytest.approx(found.idle) == pytest.approx(50e-6)
    assert [(place.name, place.activities) for place in found.places] == [
        ("process 1 thread 3", 1),
        ("process 1 thread 1", 2),
        ("process 1 thread 2", 1),
    ]


def test_a_step_that_sleeps_is_host_bound(tmp_path):
    import time

    import torch

    x = torch.rand(64, 64)

    def sleepy():
        time.sleep(0.02)
        x @ x

    found = breakdown(read_trace(capture(sleepy, tmp_path / "t.json", steps=3)))
    assert found.verdict == HOST_BOUND and found.seconds >= 0.06 and found.idle >= 0.06


def test_the_h100_trace_is_seven_percent_busy():
    """Device time of all kernels and the copy, which never overlap, over the length of the one marked step."""
    trace = raw(name := "tracelens_h100_bert_small")["traceEvents"]
    busy = sum(e["dur"] for e in trace if e.get("cat") in DEVICE_WORK)
    [whole] = [e["dur"] for e in trace if e.get("cat") == "user_annotation"]
    found = breakdown(read_trace(recorded(name)))
    assert found.busy_share == pytest.approx(busy / whole) and found.verdict == HOST_BOUND
    assert found.launch_bound and found.host_wait == pytest.approx(found.idle)


def test_what_cannot_be_broken_down_is_named(tmp_path):
    only_step = read_trace(write(tmp_path / "t.json", [step(1, 0, 5)]))
    with pytest.raises(BreakdownError, match="nothing runs"):
        breakdown(only_step)
    with pytest.raises(BreakdownError, match="no kernel"):
        device_window(only_step)
    with pytest.raises(BreakdownError, match="window of 0 ns"):
        breakdown(read_trace(write(tmp_path / "t.json", [kernel("k", 0, 5)])), (5, 5))


def test_a_device_that_was_not_recorded_gets_no_verdict():
    """104 calls put work on the device; CUPTI's counters kept its kernels out of the trace."""
    found = breakdown(read_trace(recorded("hta_a100_cupti_counters")))
    calls = [e["name"] for e in raw("hta_a100_cupti_counters")["traceEvents"] if e.get("cat") == "cuda_runtime"]
    assert found.launches == sum(any(word in call for word in ("Launch", "Memcpy", "Memset")) for call in calls)
    assert (found.on_device, found.kernels, found.verdict) == (False, 0, UNKNOWN)
