"""Distil the lanes of one step from the torch traces of some ranks into a small JSON for the lessons.

python tools/distil_timeline.py TARGET.json --what … --device … --date … --source … --licence … TRACE [TRACE …]
"""

import argparse
import json
from pathlib import Path

from helpers.profiling.timeline import intersection, lanes_of
from helpers.profiling.trace import read_trace


def main() -> None:
    """Write the lanes within the first marked step of the first trace, in whole microseconds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("traces", type=Path, nargs="+")
    for name in ("what", "device", "date", "source", "licence"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    traces = [read_trace(path) for path in args.traces]
    step = next(e for e in traces[0].of("user_annotation") if e.name.startswith("ProfilerStep#"))
    about = {name: getattr(args, name) for name in ("what", "device", "date", "source", "licence")}
    ranks = [{"rank": trace.rank, "lanes": _within(trace, step)} for trace in traces]
    args.target.write_text(json.dumps(about | {"seconds": round(step.duration, 6), "ranks": ranks}) + "\n")


def _within(trace, step) -> dict:
    window = ((step.start, step.end),)
    return {
        lane: [[round(a - step.start, 6), round(b - step.start, 6)] for a, b in intersection(intervals, window)]
        for lane, intervals in lanes_of(trace).lanes.items()
        if intervals
    }


if __name__ == "__main__":
    main()
