"""Each finding is true: on the recorded traces by counting the plain events, else case by case."""

from collections import Counter

import pytest
from trace_kit import DEVICE_WORK, RECORDED, call, event, intervals, kernel, op, raw, recorded, step, write

from helpers.profiling.capture import capture
from helpers.profiling.health import health
from helpers.profiling.trace import read_trace

START_UP = {
    "cudaMalloc",
    "cudaHostAlloc",
    "cudaStreamCreateWithFlags",
    "cudaStreamCreateWithPriority",
    "cudaDeviceGetStreamPriorityRange",
    "hipMalloc",
}


def problems(path):
    return {problem.name: problem for problem in health(read_trace(path))}


def counted(name):
    """What is wrong with a recorded trace, by loops over its plain events."""
    content = raw(name)
    operators, kernels = intervals(name, "cpu_op"), intervals(name, "kernel")
    calls = intervals(name, "cuda_runtime", "cuda_driver")
    found = Counter()
    if not any("Input Dims" in o["args"] for o in operators):
        found["no-shapes"] = len(operators)
    found["stacks"] = len(intervals(name, "python_function"))
    found["no-steps"] = not any(e["name"].startswith("ProfilerStep#") for e in intervals(name, "user_annotation"))
    found["start-up"] = sum(c["name"] in START_UP for c in calls)
    seen = {e["args"]["correlation"] for e in intervals(name, *DEVICE_WORK)}
    working = [c for c in calls if any(word in c["name"] for word in ("Launch", "Memcpy", "Memset"))]
    found["dropped" if kernels else "no-kernels"] = sum(c["args"]["correlation"] not in seen for c in working)
    found["no-device"] = bool(kernels) and not content.get("deviceProperties")
    launch = {c["args"]["correlation"]: c for c in calls}
    for k in kernels:
        own = [o for o in operators if o["args"]["External id"] == k["args"]["External id"]]
        at = launch[k["args"]["correlation"]]["ts"]
        found["foreign-ids"] += not any(o["ts"] <= at <= o["ts"] + o["dur"] for o in own)
    return {problem: count for problem, count in found.items() if count}


@pytest.mark.parametrize("name", RECORDED)
def test_what_is_found_in_a_recorded_trace_is_true_and_all(name):
    found = problems(recorded(name))
    found.pop("cut-off", None)
    assert {problem.name: problem.count for problem in found.values()} == counted(name)
    assert all(
        str(problem.count) in problem.what
        for problem in found.values()
        if problem.count > 1 and problem.name != "no-kernels"
    )
    assert all(problem.why and problem.mend for problem in found.values())


def test_what_ended_after_the_recorder_is_counted():
    """The span that Kineto writes for its own recording, and the intervals that stick out of it."""
    for name in RECORDED:
        [recorder] = [e for e in intervals(name, "Trace") if e["name"].startswith("PyTorch Profiler")][:1]
        late = [
            e
            for e in intervals(name, "cpu_op", "user_annotation", *DEVICE_WORK)
            if e["ts"] + e["dur"] > recorder["ts"] + recorder["dur"]
        ]
        found = problems(recorded(name)).get("cut-off")
        assert (found.count if found else 0) == len(late), name


GOOD = [step(3, 0, 100), op("aten::mm", 10, 40, Input_Dims=[[2, 2], [2, 2]], External_id=1)]
LAUNCHED = [call("cudaLaunchKernel", 20, 22, correlation=4), kernel("k", 30, 50, correlation=4, External_id=1)]
DEVICE = {"deviceProperties": [{"id": 0, "name": "GPU"}]}


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (GOOD, []),
        (GOOD + LAUNCHED, []),
        (LAUNCHED[1:] + GOOD, []),
        (GOOD[:1], ["no-operators"]),
        (GOOD[1:], ["no-steps"]),
        ([*GOOD, step(0, 200, 209)], ["cold"]),
        ([step(1, 0, 9), op("aten::mm", 1, 2)], ["no-shapes"]),
        ([*GOOD, event("python_function", "train.py(3): step", 0, 50)], ["stacks"]),
        ([*GOOD, *LAUNCHED, call("cudaMalloc", 1, 2, correlation=5)], ["start-up"]),
        ([*GOOD, *LAUNCHED, call("cudaMallocAsync", 1, 2, correlation=5)], []),
        ([*GOOD, *LAUNCHED, call("cuModuleLoadData", 1, 2, correlation=5)], ["start-up"]),
        ([*GOOD, LAUNCHED[0]], ["no-kernels"]),
        ([*GOOD, *LAUNCHED, call("cudaLaunchKernel", 60, 61, correlation=5)], ["dropped"]),
        ([*GOOD, *LAUNCHED, call("cudaLaunchHostFunc", 60, 61, correlation=5)], []),
        ([*GOOD, LAUNCHED[0], kernel("k", 30, 50, correlation=4)], ["no-external-id"]),
        ([*GOOD, kernel("k", 30, 50, External_id=1)], ["no-correlation"]),
        ([*GOOD, LAUNCHED[0], kernel("k", 30, 50, correlation=4, External_id=8)], ["foreign-ids"]),
        ([*GOOD, LAUNCHED[0], kernel("k", 19, 50, correlation=4, External_id=1)], ["clocks"]),
        ([*GOOD, call("cudaGraphLaunch", 20, 22, correlation=4), LAUNCHED[1]], ["cuda-graphs"]),
        ([*GOOD, {**event("Trace", "PyTorch Profiler (0)", 0, 90), "pid": "Spans"}], ["cut-off"]),
        ([*GOOD, {**event("Trace", "PyTorch Profiler (0)", 0, 100), "pid": "Spans"}], []),
    ],
)
def test_each_problem_is_seen_where_it_is_and_only_there(tmp_path, events, expected):
    assert sorted(problems(write(tmp_path / "t.json", events, **DEVICE))) == expected


def test_a_device_without_properties_is_seen(tmp_path):
    assert sorted(problems(write(tmp_path / "t.json", GOOD + LAUNCHED))) == ["no-device"]


def test_a_captured_trace_is_healthy_and_a_careless_one_is_not(tmp_path):
    import torch

    work = lambda: torch.rand(8, 8) @ torch.rand(8, 8)
    assert problems(capture(work, tmp_path / "good.json")) == {}
    careless = problems(capture(work, tmp_path / "bad.json", warmup=0, shapes=False, stacks=True))
    assert set(careless) >= {"cold", "no-shapes", "stacks"}
    with torch.profiler.profile() as profiler:
        work()
    profiler.export_chrome_trace(str(tmp_path / "bare.json"))
    assert "no-steps" in problems(tmp_path / "bare.json")
