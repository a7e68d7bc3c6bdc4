"""Several ranks at once, and what other viewers open."""

import gzip
import json

import pytest
from trace_kit import kernel, op, recorded, write

from helpers.profiling.merge import merge_traces
from helpers.profiling.trace import TraceError, read_ranks, read_trace


def rank(path, number, world=2):
    return write(
        path / f"rank{number}of{world}.json", [op("f", 1, 2)], distributedInfo={"rank": number, "world_size": world}
    )


def test_ranks_come_in_their_order(tmp_path):
    assert [trace.rank for trace in read_ranks([rank(tmp_path, n) for n in (1, 0)])] == [0, 1]
    recorded_ranks = read_ranks([recorded("hta_dist_rank1"), recorded("hta_dist_rank0")])
    assert [(trace.rank, trace.world, len(trace.columns.kernels)) for trace in recorded_ranks] == [
        (0, 128, 1154),
        (1, 128, 1104),
    ]


def test_traces_that_are_not_of_one_run_are_refused(tmp_path):
    with pytest.raises(TraceError, match="no trace to read"):
        read_ranks([])
    with pytest.raises(TraceError, match=r"not of one run: ranks \[0, 0\]"):
        read_ranks([rank(tmp_path, 0)] * 2)
    with pytest.raises(TraceError, match="of 2 and 4"):
        read_ranks([rank(tmp_path, 0), rank(tmp_path, 1, world=4)])


@pytest.mark.parametrize("job", [3, [1], {"rank": "0"}, {"rank": True}, {"rank": 0, "world_size": None}])
def test_a_rank_that_is_no_number_is_named(tmp_path, job):
    with pytest.raises(TraceError, match="does not name a rank"):
        read_trace(write(tmp_path / "t.json", [op("f", 1, 2)], distributedInfo=job))


@pytest.mark.parametrize("job", [{}, None, {"rank": 0}])
def test_a_run_of_one_process_is_rank_0_of_1(tmp_path, job):
    trace = read_trace(write(tmp_path / "t.json", [op("f", 1, 2)], distributedInfo=job))
    assert (trace.rank, trace.world) == (0, 1)


def strict(path):
    """The file by a reader that takes no NaN, no control characters and no second value of a key."""

    def refuse(word):
        raise ValueError(word)

    def once(pairs):
        assert len(dict(pairs)) == len(pairs)
        return dict(pairs)

    return json.loads(gzip.decompress(path.read_bytes()), parse_constant=refuse, object_pairs_hook=once)


def test_a_merged_file_is_strict_json_with_numbers_where_perfetto_needs_them(tmp_path):
    """Perfetto wants a phase, a process number and a time in each event; Kineto may write words and NaN there."""
    odd = write(
        tmp_path / "odd.json", [op("a\x01b", 1, 2), {}, kernel("k", 3, 4, bandwidth=float("nan")) | {"pid": "Spans"}]
    )
    for path in (odd, recorded("hta_dist_rank0"), recorded("tracelens_h100_bert_small")):
        merged = merge_traces([path], tmp_path / "all.json.gz")
        events = strict(merged.path)["traceEvents"]
        assert all(isinstance(e["ph"], str) and isinstance(e["pid"], int) for e in events)
        assert all(isinstance(e["ts"], (int, float)) for e in events if e["ph"] != "M")
        assert sum(e["ph"] == "X" for e in events) == len(read_trace(path).events) == merged.events
