"""Small traces as Kineto writes them, and the recorded ones: what the tests of traces share."""

import gzip
import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "shared" / "profiles"
RECORDED = (
    "hta_a100_alexnet",
    "hta_a100_cupti_counters",
    "hta_dist_rank0",
    "hta_dist_rank1",
    "tracelens_h100_bert_small",
    "tracelens_mi300x_compile_triton",
)
DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")


def recorded(name):
    """The path of a recorded trace; skips the test where the recordings are not beside the project."""
    path = FOLDER / f"{name}.pt.trace.json.gz"
    if not path.is_file():
        pytest.skip("needs the recorded traces of shared/profiles")
    return path


def raw(name):
    """The recorded trace as plain JSON: what the tests count independently."""
    return json.loads(gzip.decompress(recorded(name).read_bytes()), strict=False)


def intervals(name, *categories):
    """The plain events of some categories that have a length."""
    return [e for e in raw(name)["traceEvents"] if e.get("ph") == "X" and e.get("cat") in categories]


def event(cat, name, start, end, pid=1, tid=1, **args):
    """One interval in microseconds; arguments with `_` for a space, as External_id."""
    args = {key.replace("_", " "): value for key, value in args.items()}
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "ts": start,
        "dur": end - start,
        "pid": pid,
        "tid": tid,
        "args": args,
    }


def op(name, start, end, tid=1, **args):
    return event("cpu_op", name, start, end, tid=tid, **args)


def call(name, start, end, tid=1, **args):
    return event("cuda_runtime", name, start, end, tid=tid, **args)


def kernel(name, start, end, stream=7, cat="kernel", **args):
    return event(cat, name, start, end, pid=0, tid=stream, **args)


def step(number, start, end):
    return event("user_annotation", f"ProfilerStep#{number}", start, end)


def write(path, events, **header):
    """A trace file of these events."""
    path.write_text(json.dumps({"traceEvents": list(events)} | header))
    return path
