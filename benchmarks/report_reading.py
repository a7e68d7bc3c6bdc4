"""Our readers of counter reports beside the bare tools, on the same files: prints a table, asserts nothing.

python benchmarks/report_reading.py FOLDER_OF_REPORTS [--rounds 9]

The bare tools check nothing: NVIDIA's wheel in this process, and Python's csv module. Ours checks that the
report is whole, reads it apart from this process where the wheel could take it down, and converts units.
"""

import argparse
import csv
from pathlib import Path

from side_by_side import in_turns, ratio, spread, stamp

from helpers.measure import Table
from helpers.profiling.counters.distil import load
from helpers.profiling.counters.ncu_rep import frame, has_wheel
from helpers.profiling.counters.reader import read_kernels
from helpers.profiling.recordings import KERNELS


def wheel(path: Path) -> list[dict]:
    """Every metric of a `.ncu-rep`, read with the wheel in this process."""
    import ncu_report

    report = ncu_report.load_report(str(path))
    ranges = [report.range_by_idx(index) for index in range(report.num_ranges())]
    actions = [each.action_by_idx(index) for each in ranges for index in range(each.num_actions())]
    return [{name: action.metric_by_name(name).value() for name in action.metric_names()} for action in actions]


def bare_csv(path: Path) -> list[dict]:
    """The rows below the head of a `--csv` output, as texts."""
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith('"ID"'))
    return list(csv.DictReader(lines[start:]))


def main() -> None:
    """Time each form by our reader and by the bare tool, in turns, and the distilled kernels by themselves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reports", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    rows = []
    for path in sorted(args.reports.iterdir()):
        calls = {"ours": lambda path=path: read_kernels(path)}
        if path.suffix == ".ncu-rep" and has_wheel():
            calls |= {"wheel, in process": lambda path=path: wheel(path)}
            calls |= {"ours, frame only": lambda path=path: frame(path.read_bytes(), path)}
        elif path.suffix == ".csv" and "timing" not in path.name:
            calls |= {"csv module": lambda path=path: bare_csv(path)}
        elif path.suffix != ".txt":
            continue
        rows += measure(path.name, calls, args.rounds)
    rows += measure("distilled, all", {"ours": lambda: [load(path) for path in KERNELS.glob("*.json")]}, args.rounds)
    print(stamp("ncu-report"))
    print(Table(("file", "way", "median", "spread", "over ours"), tuple(rows)))


def measure(name: str, calls: dict, rounds: int) -> list[tuple]:
    """A row for each way to read one file."""
    found = in_turns(calls, rounds)
    return [(name, way, taken.median, spread(taken), ratio(taken, found["ours"])) for way, taken in found.items()]


if __name__ == "__main__":
    main()
