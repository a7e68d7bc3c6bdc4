"""One rank of 1 024 that shard the 8b preset, simulated: seconds and peak memory of a fresh process.

python benchmarks/simulation.py [--rounds 3]
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

PRESET, RANKS = "8b", 1024
LINE, WHOLE = "the line through two sizes", "every block"


def child(every_block: bool) -> dict[str, float]:
    """Seconds from the call to the counts, seconds of the imports before it, and the peak resident bytes."""
    start = time.perf_counter()
    from helpers.training.plan import ShardingPlan
    from helpers.training.presets import load_preset
    from helpers.training.simulate import simulate

    called = time.perf_counter()
    plan = ShardingPlan(dtype="bf16", recompute=True)
    found = simulate(load_preset(PRESET).model, plan, RANKS, 1, every_block=every_block)
    done = time.perf_counter()
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return {"imports": called - start, "seconds": done - called, "peak": peak, "counted": found.peak}


def measure(every_block: bool) -> dict[str, float]:
    """`child` in a process of its own."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, __file__, "--child", WHOLE if every_block else LINE]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure and print; with --child be the measured process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", choices=(LINE, WHOLE), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(child(args.child == WHOLE)))
    else:
        report(args.rounds)


def report(rounds: int) -> None:
    """Take both ways in turns and print the table."""
    from side_by_side import ratio, spread, stamp

    from helpers.measure import Samples, Table, measured, simulated

    print(stamp())
    found = {LINE: [], WHOLE: []}
    for _ in range(rounds):
        for name, runs in found.items():
            runs.append(measure(name == WHOLE))
    samples = {name: Samples(tuple(run["seconds"] for run in runs)) for name, runs in found.items()}
    rows = [
        (
            name,
            samples[name].median,
            spread(samples[name]),
            ratio(samples[name], samples[LINE]),
            Samples(tuple(run["imports"] for run in runs)).median,
            measured(max(run["peak"] for run in runs), "B"),
            simulated(runs[0]["counted"], "B", "fake tensors"),
        )
        for name, runs in found.items()
    ]
    print(f"preset {PRESET}, bf16, recompute, {RANKS} ranks, {rounds} rounds")
    headers = ("built", "simulate()", "spread", "to the line", "imports", "peak process memory", "peak of the rank")
    print(Table(headers, tuple(rows)))


if __name__ == "__main__":
    main()
