"""The records of a trace's columns hold what the plain events hold."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_kit import DEVICE_WORK, RECORDED, call, event, intervals, kernel, op, raw, recorded, step, write

from helpers.profiling.columns import around, collective_kind, parents_of
from helpers.profiling.intervals import cover
from helpers.profiling.trace import Event, Trace, read_trace


def nanoseconds(event):
    return round(1000 * event["ts"]), round(1000 * event["dur"])


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize(
    ("record", "categories"),
    [
        ("operators", ["cpu_op"]),
        ("launches", ["cuda_runtime", "cuda_driver"]),
        ("kernels", ["kernel"]),
        ("copies", ["gpu_memcpy", "gpu_memset"]),
        ("annotations", ["user_annotation"]),
    ],
)
def test_a_record_holds_every_event_of_its_kind(name, record, categories):
    found = getattr(read_trace(recorded(name)).columns, record)
    expected = Counter((e["name"], (e["pid"], e["tid"]), *nanoseconds(e)) for e in intervals(name, *categories))
    assert Counter(zip(found.name.tolist(), found.thread.tolist(), found.start, found.duration)) == expected
    assert np.all(np.diff(found.start) >= 0)


@pytest.mark.parametrize("name", RECORDED)
def test_arguments_are_those_of_the_events(name):
    columns = read_trace(recorded(name)).columns
    operators, kernels, copies, launches = columns.operators, columns.kernels, columns.copies, columns.launches
    assert Counter(operators.shapes.tolist()) == Counter(
        tuple(tuple(d) if all(isinstance(n, int) for n in d) else () for d in o["args"].get("Input Dims", ()))
        for o in intervals(name, "cpu_op")
    )
    for record, cats, column, key, missing in (
        (operators, ["cpu_op"], "external_id", "External id", 0),
        (operators, ["cpu_op"], "sequence", "Sequence number", -1),
        (kernels, ["kernel"], "external_id", "External id", 0),
        (kernels, ["kernel"], "correlation", "correlation", 0),
        (launches, ["cuda_runtime", "cuda_driver"], "correlation", "correlation", 0),
        (copies, ["gpu_memcpy", "gpu_memset"], "bytes", "bytes", 0),
    ):
        expected = Counter(e["args"].get(key, missing) for e in intervals(name, *cats))
        assert Counter(getattr(record, column).tolist()) == expected, key
    for key in ("grid", "block"):
        expected = Counter(tuple(k["args"].get(key, ())) for k in intervals(name, "kernel"))
        assert Counter(getattr(kernels, key).tolist()) == expected


def test_allocations_are_those_of_the_h100_trace():
    found = read_trace(recorded("tracelens_h100_bert_small")).columns.memory
    expected = [e for e in raw("tracelens_h100_bert_small")["traceEvents"] if e["name"] == "[memory]"]
    assert len(found) == len(expected) == 236
    for column, key in (
        ("bytes", "Bytes"),
        ("address", "Addr"),
        ("allocated", "Total Allocated"),
        ("device", "Device Id"),
    ):
        assert getattr(found, column).tolist() == [e["args"][key] for e in expected]
    assert found.time.tolist() == [round(1000 * e["ts"]) for e in expected]


def test_times_since_1970_keep_their_microseconds():
    """1.7e15 µs fill a float64: nanoseconds are made of the whole and the broken part apart."""
    found = read_trace(recorded("hta_dist_rank0")).columns
    assert Counter(found.start.tolist()) == Counter(
        1000 * int(e["ts"]) for e in raw("hta_dist_rank0")["traceEvents"] if e["ph"] == "X"
    )


def test_collectives_are_nccls_kernels_or_gloos_work(tmp_path):
    on_gpu = [
        kernel("ncclDevKernel_AllGather_RING_LL", 0, 9, In_msg_nelems=1000, dtype="BFloat16"),
        kernel("gemm", 0, 9),
        event("user_annotation", "nccl:all_gather", 0, 1, Input_Dims=[[8]], Input_type=["float"]),
    ]
    found = read_trace(write(tmp_path / "t.json", on_gpu)).columns.collectives
    assert (found.name.tolist(), found.kind.tolist(), found.bytes.tolist()) == (
        ["ncclDevKernel_AllGather_RING_LL"], ["all-gather"], [2000]
    )  # fmt: skip
    on_cpu = [
        event("user_annotation", "gloo:all_reduce", 0, 9, Input_Dims=[[3, 4]], Input_type=["double"]),
        op("f", 0, 1),
    ]
    found = read_trace(write(tmp_path / "t.json", on_cpu)).columns.collectives
    assert (found.kind.tolist(), found.bytes.tolist()) == (["all-reduce"], [96])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all-reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce-scatter"),
        ("gloo:reduce_scatter", "reduce-scatter"),
        ("nccl:_all_gather_base", "all-gather"),
        ("ncclDevKernel_SendRecv", "other communication"),
    ],
)
def test_a_collective_is_known_by_its_name(name, kind):
    assert collective_kind(name) == kind


spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(0, 1)), max_size=14)


def by_stack(intervals):
    """The parent of each interval, by a stack of the open ones on its thread."""
    parents, open_ones = [-1] * len(intervals), {}
    for index in sorted(range(len(intervals)), key=lambda i: (intervals[i][0], -intervals[i][1])):
        start, _, thread = intervals[index]
        stack = open_ones.setdefault(thread, [])
        while stack and sum(intervals[stack[-1]][:2]) <= start:
            stack.pop()
        parents[index] = stack[-1] if stack else -1
        stack.append(index)
    return parents


@given(spans)
def test_parents_are_those_of_a_stack(intervals):
    start, duration, thread = (
        (np.array(column, np.int64) for column in zip(*intervals)) if intervals else [np.empty(0)] * 3
    )
    assert parents_of(start, duration, thread).tolist() == by_stack(intervals)


@given(spans, spans)
def test_the_innermost_around_is_the_parent_that_a_stack_finds(outer, calls):
    """A call joins as if it were an operator itself: shorter than any that starts with it, and first to end."""
    events = [Event(f"o{i}", "cpu_op", s, d, (0, t)) for i, (s, d, t) in enumerate(outer)]
    events += [Event(f"c{i}", "cuda_runtime", s, 0, (0, t)) for i, (s, _, t) in enumerate(calls)]
    columns = Trace(tuple(events)).columns
    found = around(columns.operators, columns.launches).tolist()
    for index, (start, _, thread) in enumerate(calls):
        assert found[index] == by_stack([*outer, (start, 0, thread)])[-1]


@given(spans, spans)
def test_sets_of_time_agree_with_a_grid(one, other):
    ticks = lambda spans: {t for start, length, _ in spans for t in range(start, start + length)}
    a, b = (
        cover(*(np.array([(s, s + d) for s, d, _ in spans], np.int64).reshape(-1, 2).T)) for spans in (one, other)
    )
    assert a.length == len(ticks(one)) and a.shared(b) == len(ticks(one) & ticks(other))
    assert (a | b).length == len(ticks(one) | ticks(other))
    assert np.all(a.start[1:] > a.end[:-1])
    assert a.gaps((3, 20)).length == len(set(range(3, 20)) - ticks(one))
    assert a.within((3, 20)).length == len(set(range(3, 20)) & ticks(one))
    starts, ends = (np.array([t + d for t in range(40)]) for d in (0, 3))
    assert a.touches(starts, ends).tolist() == [bool({t, t + 1, t + 2} & ticks(one)) for t in range(40)]


def test_events_are_made_when_they_are_asked_for(tmp_path):
    events = [op(f"f{n % 3}", n, n + 1) for n in range(5000)]
    trace = read_trace(write(tmp_path / "t.json", events))
    assert len(trace.events) == 5000 and trace.events[-1].name == f"f{4999 % 3}"
    assert [e.start for e in trace.events] == [n / 1e6 for n in range(5000)]
    assert trace.events[10:12] == (trace.events[10], trace.events[11])
    with pytest.raises(IndexError):
        trace.events[5000]
    assert trace.of("cpu_op") == tuple(trace.events) and trace.of("kernel") == ()


def test_events_made_by_hand_have_the_same_columns_as_a_file(tmp_path):
    events = [
        step(1, 0, 50),
        op("f", 5, 9, External_id=3, Input_Dims=[[2, 3], []], Input_type=["float", ""]),
        call("g", 6, 7),
    ]
    read = read_trace(write(tmp_path / "t.json", events))
    made = Trace(tuple(read.events)).columns
    for name in ("name", "category", "thread", "start", "duration", "external_id", "shapes", "element_bytes"):
        assert getattr(made, name).tolist() == getattr(read.columns, name).tolist()


@pytest.mark.parametrize("name", RECORDED)
def test_self_and_total_time_of_operators_add_up(name):
    """On each thread, self times add up to the time that operators cover: none is counted twice or lost."""
    trace = read_trace(recorded(name))
    operators = trace.columns.operators
    covered = 0
    for thread in set(operators.thread.tolist()):
        mine = operators.take(operators.thread.where(lambda one, thread=thread: one == thread))
        covered += cover(mine.start, mine.end).length
    rows = trace.operators()
    assert sum(row.self_time for row in rows) == pytest.approx(covered / 1e9, rel=2e-3)
    assert sum(row.calls for row in rows) == len(intervals(name, "cpu_op"))
    assert all(row.total >= row.self_time - 1e-6 for row in rows)
    assert sum(row.device_self for row in rows) <= sum(e["dur"] for e in intervals(name, *DEVICE_WORK)) / 1e6 + 1e-9
