from pathlib import Path

import pytest

from helpers.profiling.recordings import FOLDER, RecordingError, recorded_timeline
from helpers.profiling.timeline import intersection, lanes_figure, lanes_of, length
from helpers.profiling.trace import read_trace

SHARED = Path(__file__).parents[3] / "shared" / "profiles"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_every_recording_says_where_it_is_from_and_can_be_drawn(path):
    found = recorded_timeline(path.stem)
    assert all((found.what, found.device, found.date, found.source, found.licence))
    assert all(
        0 <= start < end <= found.seconds
        for rank in found.ranks
        for lane in rank.lanes.values()
        for start, end in lane
    )
    assert all(0 < rank.overlap < 1 and 0 < rank.exposed < found.seconds for rank in found.ranks)
    assert len(lanes_figure(found.ranks, 0.0).axes) == 1


@pytest.mark.skipif(not SHARED.is_dir(), reason="the recorded traces are not beside the project")
def test_the_distilled_lanes_are_those_of_the_trace():
    trace = read_trace(SHARED / "hta_dist_rank1.pt.trace.json.gz")
    found = recorded_timeline("nccl_two_ranks")
    first = read_trace(SHARED / "hta_dist_rank0.pt.trace.json.gz")
    step = next(e for e in first.of("user_annotation") if e.name.startswith("ProfilerStep#"))
    whole = lanes_of(trace)
    for lane, intervals in whole.lanes.items():
        expected = length(intersection(intervals, ((step.start, step.end),)))
        assert found.ranks[1].seconds(lane) == pytest.approx(expected, abs=2e-6 * (len(intervals) + 1))


def test_a_recording_that_is_not_there_is_named(tmp_path):
    with pytest.raises(RecordingError, match=r"'nccl_three' cannot be read[\s\S]*nccl_two_ranks"):
        recorded_timeline("nccl_three")
