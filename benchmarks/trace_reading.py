"""A million events read and broken down beside HolisticTraceAnalysis; a capture beside bare torch.profiler.

python benchmarks/trace_reading.py [--trace FILE] [--events N] [--hta PYTHON]

FILE is repeated in time until it holds N events; without one a step of a small model is captured, which
has no kernels for HTA to break down. PYTHON is an interpreter in which HTA can be imported. Prints
tables, asserts nothing.
"""

import argparse
import gzip
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from helpers.measure import Quantity, Table, measured
from helpers.profiling.capture import capture

RECORDED = Path(__file__).parents[2] / "shared" / "profiles" / "hta_dist_rank0.pt.trace.json.gz"
INSTALL = "python -m venv hta && hta/bin/pip install HolisticTraceAnalysis 'pandas<3'; then --hta hta/bin/python"
IDS = ("External id", "correlation")

OURS = """
from pathlib import Path
from helpers.profiling.breakdown import breakdown, device_window
from helpers.profiling.trace import read_trace
begin = perf_counter()
trace = read_trace(Path(path))
read = perf_counter() - begin
found = breakdown(trace, device_window(trace))
numbers = [found.idle * 1e6, found.compute * 1e6, 100 * found.overlap_share]
"""
HTA = """
import logging, warnings
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
begin = perf_counter()
analysis = TraceAnalysis(trace_files={0: path}, trace_dir=path.rpartition("/")[0], include_last_profiler_step=True)
read = perf_counter() - begin
row = analysis.get_temporal_breakdown(visualize=False).iloc[0]
overlap = analysis.get_comm_comp_overlap(visualize=False).iloc[0]["comp_comm_overlap_pctg"]
numbers = [float(row["idle_time(us)"]), float(row["compute_time(us)"]), float(overlap)]
"""
FRAME = """
import json, resource, sys
from time import perf_counter, process_time
path = sys.argv[1]
{}
whole, cpu = perf_counter() - begin, process_time()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(json.dumps([read, whole, cpu, peak, *numbers]))
"""


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", type=Path, default=RECORDED)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--hta", default=sys.executable)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        reading(args.trace, args.events, args.hta, Path(folder))
        capturing(Path(folder))


def reading(source: Path, events: int, hta: str, folder: Path) -> None:
    """Both readers on one file, each in a process of its own."""
    if not source.is_file():
        source = capture(_step(), folder / "small.json", steps=1)
    path = folder / "large.json"
    written = repeat(source, path, events)
    print(f"{source.name} repeated to {written} events, {path.stat().st_size / 2**20:.0f} MiB")
    ours = _measure(sys.executable, OURS, path)
    rows = [("ours", *ours)]
    if subprocess.run([hta, "-c", "import hta"], capture_output=True).returncode:
        print(f"HTA cannot be imported by {hta}. {INSTALL}")
    else:
        theirs = _measure(hta, HTA, path)
        rows += [("HTA", *theirs), ("ratio", *(measured(b.value / a.value, "") for a, b in zip(ours, theirs)))]
    print(
        Table(
            ("reader", "read", "and broken down", "CPU with imports", "peak memory", "idle", "compute", "overlap"),
            tuple(rows),
        )
    )


def repeat(source: Path, target: Path, events: int) -> int:
    """Write `source` again and again, later in time and with ids of its own, until there are `events` of them."""
    data = source.read_bytes()
    content = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data, strict=False)
    whole = content.pop("traceEvents")
    moving = [event for event in whole if event.get("ph") == "X" and event.get("cat") != "Trace"]
    span = 10 + max(event["ts"] + event["dur"] for event in moving) - min(event["ts"] for event in moving)
    stride = 1 + max((event.get("args") or {}).get(key) or 0 for event in moving for key in IDS)
    once = [event for event in whole if event.get("ph") != "X" or event.get("cat") == "Trace"]
    copies = math.ceil((events - len(once)) / len(moving))
    with target.open("w") as stream:
        stream.write(json.dumps(content)[:-1] + ', "traceEvents": [')
        stream.write(",\n".join(json.dumps(event) for event in once))
        for copy in range(copies):
            for event in moving:
                stream.write(",\n" + json.dumps(_moved(event, copy * span, copy * stride)))
        stream.write("]}")
    return len(once) + copies * len(moving)


def _moved(event: dict, later: float, stride: int) -> dict:
    args = event.get("args") or {}
    args = args | {key: args[key] + stride for key in IDS if args.get(key)}
    return event | {"ts": event["ts"] + later, "args": args}


def _measure(python: str, code: str, path: Path) -> tuple[Quantity, ...]:
    run = subprocess.run([python, "-c", FRAME.format(code), str(path)], capture_output=True, text=True)
    if run.returncode:
        sys.exit(run.stderr[-2000:])
    *numbers, idle, compute, overlap = json.loads(run.stdout.splitlines()[-1])
    units = ("s", "s", "s", "B", "s", "s", "%")
    return tuple(measured(value, unit) for value, unit in zip((*numbers, idle / 1e6, compute / 1e6, overlap), units))


def capturing(folder: Path, steps: int = 20) -> None:
    """Steps under `capture` and under torch.profiler with the same schedule and shapes, in CPU seconds.

    The two take turns, so that a slower moment of the machine meets both.
    """
    import torch
    from torch.profiler import profile, schedule

    step = _step()
    torch.set_num_threads(1)
    plain, bare, ours = [], [], []
    for turn in range(10):
        plain.append(_seconds(lambda: [step() for _ in range(steps)]))

        def by_hand():
            with profile(
                activities=torch.profiler.supported_activities(),
                schedule=schedule(wait=0, warmup=2, active=steps, repeat=1),
                record_shapes=True,
                on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(folder / "bare.json")),
            ) as profiler:
                for _ in range(steps + 2):
                    step()
                    profiler.step()

        both = [(bare, by_hand), (ours, lambda: capture(step, folder / "ours.json", steps=steps, warmup=2))]
        for found, call in both if turn % 2 else reversed(both):
            found.append(_seconds(call))
    rows = [(name, *_quarters(found)) for name, found in (("torch.profiler", bare), ("capture", ours))]
    print(f"{steps} steps recorded and written, {len(bare)} times; without a profiler a step takes", end=" ")
    print(measured(statistics.median(plain) / steps, "s"))
    print(Table(("recorded by", "median CPU time", "least", "most"), tuple(rows)))
    print("capture over torch.profiler, median of the pairs:", end=" ")
    print(measured(statistics.median(b / a for a, b in zip(bare, ours)), ""))


def _seconds(call: Callable[[], object]) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin


def _quarters(seconds: list[float]) -> tuple[Quantity, ...]:
    return tuple(measured(value, "s") for value in (statistics.median(seconds), min(seconds), max(seconds)))


def _step() -> Callable[[], object]:
    import torch

    model = torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(20)))
    optimizer, x = torch.optim.AdamW(model.parameters()), torch.rand(16, 128)

    def step():
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    main()
