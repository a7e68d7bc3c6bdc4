import gzip
import json
from collections import Counter

import pytest
import torch
from trace_kit import recorded

from helpers.profiling.capture import capture
from helpers.profiling.trace import Event, Trace, TraceError, device_seconds, read_trace, self_times

NAMES = ["hta_a100_alexnet", "hta_dist_rank0", "hta_dist_rank1", "tracelens_h100_bert_small"]


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """A trace of three steps, and torch's own table of the same run."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.SiLU(), torch.nn.Linear(64, 8))
    x = torch.rand(32, 64)
    path = tmp_path_factory.mktemp("trace") / "live.json"
    with torch.profiler.profile(record_shapes=True) as profiler:
        for _ in range(3):
            model(x).sum().backward()
    profiler.export_chrome_trace(str(path))
    return read_trace(path), profiler.key_averages()


def test_operators_agree_with_torchs_own_table(live):
    trace, averages = live
    ours = {operator.name: operator for operator in trace.operators()}
    theirs = {row.key: row for row in averages if row.key.startswith("aten::")}
    assert len(theirs) > 10
    for name, row in theirs.items():
        if name != "aten::sum":  # torch counts a call inside a call of the same operator once
            assert ours[name].calls == row.count, name
            assert ours[name].total == pytest.approx(row.cpu_time_total * 1e-6, rel=0.01, abs=2e-6), name
        assert ours[name].self_time == pytest.approx(row.self_cpu_time_total * 1e-6, rel=0.01, abs=2e-6), name


def test_operators_are_ordered_by_the_time_that_is_asked_for(live):
    trace, _ = live
    for by in ("self_time", "total"):
        times = [getattr(row, by) for row in trace.operators(by)]
        assert times == sorted(times, reverse=True)
    assert trace.operators() == trace.operators("self_time") != trace.operators("total")
    with pytest.raises(ValueError, match="not by 'name'"):
        trace.operators("name")


def test_shapes_are_those_of_the_inputs(live):
    trace, _ = live
    products = [event for event in trace.of("cpu_op") if event.name == "aten::addmm"]
    assert {event.shapes[1:3] for event in products} == {((32, 64), (64, 64)), ((32, 64), (64, 8))}
    assert all(event.bytes_per_element[1] == 4 for event in products)


@pytest.mark.parametrize("name", NAMES)
def test_recorded_traces_are_read_whole(name):
    path = recorded(name)
    with gzip.open(path, "rt") as stream:
        raw = json.load(stream, strict=False)["traceEvents"]
    expected = Counter(str(e.get("cat", "")) for e in raw if e.get("ph") == "X")
    trace = read_trace(path)
    assert Counter(event.category for event in trace.events) == expected
    assert sum(e.duration for e in trace.events) == pytest.approx(
        1e-6 * sum(e.get("dur", 0) for e in raw if e.get("ph") == "X")
    )


def test_ranks_are_read_from_a_distributed_trace():
    pairs = [(t.rank, t.world) for t in (read_trace(recorded(f"hta_dist_rank{r}")) for r in (0, 1))]
    assert [rank for rank, _ in pairs] == [0, 1] and pairs[0][1] == pairs[1][1] > 1


def test_kernel_time_is_joined_by_external_id():
    path = recorded("tracelens_h100_bert_small")
    with gzip.open(path, "rt") as stream:
        raw = json.load(stream, strict=False)["traceEvents"]
    kernels = [e for e in raw if e.get("cat") == "kernel" and e["args"].get("External id")]
    assert sum(device_seconds(read_trace(path)).values()) == pytest.approx(1e-6 * sum(e["dur"] for e in kernels))


def brute_force_self_time(events, index):
    """Duration minus the time covered by any event inside on the same thread, on a fine grid."""
    own = events[index]
    inner = [
        e
        for i, e in enumerate(events)
        if i != index and e.thread == own.thread and own.start <= e.start and e.end <= own.end
    ]
    ticks = range(int(own.start), int(own.end))
    return sum(not any(e.start <= tick < e.end for e in inner) for tick in ticks)


def test_self_time_agrees_with_brute_force():
    spans = [(0, 100, 1), (10, 30, 1), (12, 20, 1), (20, 25, 1), (40, 90, 1), (50, 60, 1), (0, 50, 2), (5, 45, 2)]
    events = tuple(Event(f"op{i}", "cpu_op", a, b - a, (0, t)) for i, (a, b, t) in enumerate(spans))
    expected = {index: brute_force_self_time(events, index) for index in range(len(events))}
    assert self_times(events) == expected


def test_an_operator_inside_itself_counts_once_in_total():
    events = tuple(Event(n, "cpu_op", s, d, (0, 0)) for n, s, d in [("f", 0, 10), ("g", 1, 8), ("f", 2, 5)])
    rows = {row.name: row for row in Trace(events).operators()}
    assert (rows["f"].calls, rows["f"].total, rows["f"].self_time) == (2, 10, 2 + 5)
    assert sum(row.self_time for row in rows.values()) == 10


def test_warm_up_is_thrown_away_and_the_file_is_whole(tmp_path):
    calls = []
    path = capture(
        lambda: calls.append(torch.rand(8, 8) @ torch.rand(8, 8)), tmp_path / "a" / "t.json", steps=2, warmup=3
    )
    assert len(calls) == 5 and [p.name for p in path.parent.iterdir()] == ["t.json"]
    trace = read_trace(path)
    steps = [e.name for e in trace.of("user_annotation")]
    assert steps == ["ProfilerStep#3", "ProfilerStep#4"] and trace.problems() == ()
    assert sum(e.name == "aten::mm" for e in trace.events) == 2


def test_steps_before_the_profiler_are_only_run(tmp_path):
    calls = []
    path = capture(lambda: calls.append(torch.rand(4)), tmp_path / "t.json.gz", steps=1, warmup=1, wait=2)
    steps = [e.name for e in read_trace(path).of("user_annotation")]
    assert len(calls) == 4 and steps == ["ProfilerStep#3"]


def test_shapes_stacks_and_memory_are_recorded_when_asked_for(tmp_path):
    def step():
        torch.rand(64, 64) @ torch.rand(64, 64)

    plain = read_trace(capture(step, tmp_path / "a.json"))
    every = read_trace(capture(step, tmp_path / "b.json", stacks=True, memory=True))
    bare = read_trace(capture(step, tmp_path / "c.json", shapes=False))
    assert [bool(t.of("python_function")) for t in (plain, every, bare)] == [False, True, False]
    assert [len(t.columns.memory) > 0 for t in (plain, every, bare)] == [False, True, False]
    assert [any(e.shapes for e in t.of("cpu_op")) for t in (plain, every, bare)] == [True, True, False]
    memory = every.columns.memory
    assert {4 * 64 * 64, -4 * 64 * 64} <= set(memory.bytes.tolist()) and set(memory.device.tolist()) == {-1}


@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_a_step_that_raises_leaves_no_file(tmp_path, fails_at):
    calls = []

    def step():
        calls.append(1)
        return 1 / (fails_at - len(calls))

    with pytest.raises(ZeroDivisionError):
        capture(step, tmp_path / "t.json", steps=2, warmup=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("plan", [{"steps": 0}, {"warmup": -1}, {"wait": -1}])
def test_a_schedule_without_steps_is_refused(tmp_path, plan):
    with pytest.raises(ValueError, match="steps must be"):
        capture(lambda: None, tmp_path / "t.json", **plan)


def test_a_cold_trace_is_a_problem(tmp_path):
    path = capture(lambda: torch.rand(4).sum(), tmp_path / "t.json", steps=1, warmup=0)
    assert any("first step" in problem for problem in read_trace(path).problems())


def test_a_trace_without_operators_or_steps_is_a_problem():
    problems = Trace((Event("x", "user_annotation", 0, 1, (0, 0)),)).problems()
    assert any("no operator" in text for text in problems) and any("no step" in text for text in problems)
    launched = (Event("cudaLaunchKernel", "cuda_runtime", 0, 1, (0, 0)), Event("f", "cpu_op", 0, 1, (0, 0)))
    assert any("none was recorded" in text for text in Trace(launched).problems())


SMALL = {"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "f", "ts": 1.0, "dur": 2.0, "pid": 1, "tid": 1}]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"   \n", "empty"),
        (b"[]", "no traceEvents"),
        (b"{}", "no traceEvents"),
        (b'{"traceEvents": 3}', "no traceEvents"),
        (b'{"traceEvents": []}', "no interval"),
        (b"\xff\xfe", "cannot be read"),
        (b'{"traceEvents": [{"ph": "X", "name": "f", "ts": NaN, "dur": 1}]}', "'f' has no valid time"),
        (b'{"traceEvents": [{"ph": "X", "name": "f", "ts": 1, "dur": -1}]}', "'f' has no valid time"),
        (b'{"traceEvents": [{"ph": "X", "name": "f"}]}', "'f' has no valid time"),
        (b"[" * 100_000, "not JSON"),
        (b'{"traceEvents": [3]}', "no event: 3"),
        (b'{"traceEvents": [{"name": "f", "ts": 1, "dur": 1}]}', "phase ''"),
        (b'{"traceEvents": [{"ph": "B", "name": "f", "ts": 1}]}', "'f' is of phase 'B'"),
        (b'{"traceEvents": [{"ph": "X", "name": "f", "cat": "cpu_op", "ts": 1}]}', "'f' has no valid time"),
        (b'{"traceEvents": [{"ph": "X", "name": "f", "cat": "cpu_op", "ts": 1e17, "dur": 1}]}', "no valid time"),
        (b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "ts": 1, "dur": 1}]}', "has no name"),
        (b'{"traceEvents": [{"ph": "X", "name": "f", "ts": 1, "dur": 1}]}', "has no category"),
        (b'{"traceEvents": [{"ph": "i", "name": "[memory]"}]}', r"'\[memory\]' has no valid time"),
    ],
)
def test_what_is_no_trace_is_named(tmp_path, content, message):
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=message) as caught:
        read_trace(path)
    assert str(path) in caught.value.where and caught.value.mend


def test_an_absent_file_is_named(tmp_path):
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "none.json")


@pytest.mark.parametrize("pack", [lambda data: data, gzip.compress], ids=["json", "gz"])
def test_every_cut_is_a_named_error_and_never_a_shorter_list(tmp_path, pack):
    whole = pack(json.dumps(SMALL).encode())
    path = tmp_path / "t.json"
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        with pytest.raises(TraceError):
            read_trace(path)
    path.write_bytes(whole)
    assert len(read_trace(path).events) == 1


def test_control_characters_in_names_are_read(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(SMALL).replace('"f"', '"f\x01g"'))
    assert read_trace(path).events[0].name == "f\x01g"
