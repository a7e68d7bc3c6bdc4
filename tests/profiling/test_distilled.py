import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from trace_kit import DEVICE_WORK, FOLDER, call, intervals, kernel, op, recorded, step, write

from helpers.profiling.breakdown import breakdown, device_window
from helpers.profiling.distilled import distil_trace, restore_trace
from helpers.profiling.health import health
from helpers.profiling.joins import join
from helpers.profiling.recordings import TRACES, RecordingError, recorded_trace
from helpers.profiling.trace import Trace, read_trace

TOOL = Path(__file__).parents[2] / "tools/distil_trace.py"
NAMES = sorted(path.stem for path in TRACES.glob("*.json"))


def small(tmp_path) -> Trace:
    events = [
        step(3, 0, 100),
        op("aten::linear", 10, 60, External_id=1, Input_Dims=[[2, 3], [4, 3]], Input_type=["float", "float"]),
        op("aten::mm", 20, 50, External_id=2),
        call("cudaLaunchKernel", 30, 40, correlation=7),
        call("cudaGetDevice", 42, 44, correlation=8),
        kernel("gemm", 70, 90.5, correlation=7, External_id=2, grid=[4, 1, 1]),
    ]
    return read_trace(write(tmp_path / "small.json", events, deviceProperties=[{"name": "one"}, {"name": "one"}]))


def test_a_distilled_trace_says_what_the_whole_one_says(tmp_path):
    whole = small(tmp_path)
    found = restore_trace(json.loads(json.dumps(distil_trace(whole))))
    assert found.operators() == whole.operators()
    assert join(found).counts == join(whole).counts
    assert found.columns.operators.shapes.tolist() == whole.columns.operators.shapes.tolist()
    assert found.columns.kernels.grid.tolist() == [(4, 1, 1)]
    assert breakdown(found).busy == pytest.approx(20.5e-6)
    assert found.devices == ("one",)
    assert "cudaGetDevice" not in found.columns.launches.name.values


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_trace_is_what_its_tool_makes_of_the_published_one(name):
    if not FOLDER.is_dir():
        pytest.skip("needs the recorded traces of shared/profiles")
    tool = runpy.run_path(str(TOOL))
    assert json.loads((TRACES / f"{name}.json").read_text()) == json.loads(
        json.dumps(tool["content_of"](FOLDER, name))
    )
    about, found = recorded_trace(name), read_trace(recorded(tool["CHOSEN"][name][0].partition(".")[0]))
    assert {problem.name for problem in health(found)} - {p.name for p in health(about.trace)} <= {"stacks"}
    assert about.source.partition(",")[0] in (FOLDER / "SOURCES.md").read_text()
    assert join(about.trace).counts == join(found).counts


def test_the_h100_is_idle_as_the_plain_events_say():
    work = intervals("tracelens_h100_bert_small", *DEVICE_WORK)
    times = np.array([(event["ts"], event["ts"] + event["dur"]) for event in work])
    grid = np.arange(times.min(), times.max(), 0.01)
    inside = np.zeros(len(grid), bool)
    for start, end in times:
        inside |= (grid >= start) & (grid < end)
    found = recorded_trace("h100_bert_small").trace
    assert breakdown(found, device_window(found)).busy_share == pytest.approx(inside.mean(), abs=0.002)
    assert len(found.columns.kernels) == 60 and round(100 * inside.mean(), 1) == 7.9


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_says_where_it_is_from_and_needs_no_shared_folder(name):
    about = recorded_trace(name)
    assert all((about.what, about.device, about.date, about.tool, about.source, about.licence, about.doubts))
    assert breakdown(about.trace).kernels == len(about.trace.columns.kernels) > 0


def test_a_recording_that_is_not_there_or_not_whole_is_named(tmp_path, monkeypatch):
    with pytest.raises(RecordingError, match=r"'none' cannot be read[\s\S]*h100_bert_small"):
        recorded_trace("none")
    content = json.loads((TRACES / "mi300x_compiled_block.json").read_text())
    monkeypatch.setattr("helpers.profiling.recordings.TRACES", tmp_path)
    for broken in (
        {"trace": {}},
        {"trace": content["trace"] | {"start": content["trace"]["start"][1:]}},
        {"trace": content["trace"] | {"name": {"values": ["one"], "rows": content["trace"]["name"]["rows"]}}},
        {"trace": content["trace"] | {"start": ["now"]}},
        {"what": None, "unknown": 1},
    ):
        (tmp_path / "broken.json").write_text(json.dumps(content | broken))
        with pytest.raises(RecordingError, match="'broken' cannot be read"):
            recorded_trace("broken")
