"""Several ranks' traces as one file: every event is in it, on one clock, under its own rank."""

import gzip
import json
from pathlib import Path

import pytest

from helpers.profiling.merge import merge_traces
from helpers.profiling.trace import TraceError, read_trace

SHARED = Path(__file__).parents[3] / "shared" / "profiles"


def trace(path, rank, start):
    events = [
        {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "python"}},
        {"ph": "X", "name": "aten::mm", "cat": "cpu_op", "pid": 7, "tid": 1, "ts": start, "dur": 5},
        {"ph": "X", "name": "kernel", "cat": "kernel", "pid": 0, "tid": 3, "ts": start + 2, "dur": 4},
        {"ph": "s", "id": 1, "pid": 7, "tid": 1, "ts": start, "cat": "ac2g", "name": "ac2g"},
        {"ph": "f", "id": 1, "pid": 0, "tid": 3, "ts": start + 2, "cat": "ac2g", "name": "ac2g", "bp": "e"},
    ]
    path.write_text(json.dumps({"traceEvents": events, "distributedInfo": {"rank": rank, "world_size": 2}}))
    return path


def test_ranks_become_processes_on_one_clock(tmp_path):
    paths = [trace(tmp_path / "a.json", 0, 100), trace(tmp_path / "b.json", 1, 103)]
    merged = merge_traces(paths, tmp_path / "both.json.gz")
    assert merged.ranks == (0, 1) and merged.events == 4 and merged.seconds == pytest.approx(9e-6)
    events = json.loads(gzip.decompress(merged.path.read_bytes()))["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert sorted(names.values()) == ["rank 0", "rank 0 · 0", "rank 1", "rank 1 · 0"]
    work = [event for event in events if event["ph"] == "X"]
    assert {names[event["pid"]].split(" ·")[0] for event in work if event["ts"] < 103} == {"rank 0"}
    arrows = [(event["id"], event["ph"]) for event in events if event["ph"] in "sf"]
    assert sorted(arrows) == [("0:1", "f"), ("0:1", "s"), ("1:1", "f"), ("1:1", "s")]
    assert read_trace(merged.path).events[0].start == pytest.approx(100e-6)


def test_bad_input_writes_nothing(tmp_path):
    one, target = trace(tmp_path / "a.json", 0, 1), tmp_path / "both.json"
    cut = tmp_path / "cut.json"
    cut.write_text(one.read_text()[:-20])
    for paths, words in (
        ([], "no trace to merge"),
        ([one, one], "two traces are of rank 0"),
        ([one, cut], "cut short"),
    ):
        with pytest.raises(TraceError, match=words):
            merge_traces(paths, target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "cut.json"]


@pytest.mark.skipif(not SHARED.is_dir(), reason="the recorded traces are not beside the project")
def test_a_recorded_pair_keeps_every_interval(tmp_path):
    paths = [SHARED / f"hta_dist_rank{rank}.pt.trace.json.gz" for rank in (0, 1)]
    merged = merge_traces(paths, tmp_path / "both.json.gz")
    again, parts = read_trace(merged.path), [read_trace(path) for path in paths]
    assert len(again.events) == merged.events == sum(len(part.events) for part in parts)
    assert sorted(e.duration for e in again.events) == sorted(e.duration for part in parts for e in part.events)
