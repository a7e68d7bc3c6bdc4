"""What the tests of the counters share: the recorded reports, and small reports written out by hand."""

import csv
import functools
import io
from pathlib import Path

import pytest

from helpers.profiling.counters.ncu_rep import has_wheel
from helpers.profiling.counters.reader import read_kernels

RECORDED = Path(__file__).parents[3] / "shared" / "profiles"
REPORTS = sorted(path.name for path in RECORDED.glob("*.ncu-rep"))
FIXED = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size"]
FIXED += ["Grid Size", "Device", "CC"]


def recorded(name):
    """The path of a recorded report, or a skip."""
    path = RECORDED / name
    if not path.is_file():
        pytest.skip("needs the recorded reports of shared/profiles")
    if path.suffix == ".ncu-rep" and not has_wheel():
        pytest.skip("needs the wheel ncu-report (optional extra ncu)")
    return path


@functools.cache
def kernels_of(path):
    """The kernels of a recorded report: each is read once for all tests, as that takes a process."""
    return read_kernels(path)


def row(number=0, name="saxpy(float, float *)", grid="(64, 1, 1)", block="(256, 1, 1)", capability="9.0"):
    """The cells before the metrics of a CSV row."""
    return [str(number), "77", "python3", "127.0.0.1", name, "1", "7", block, grid, "0", capability]


def table(*rows):
    """CSV lines as ncu writes them: every cell quoted."""
    stream = io.StringIO()
    csv.writer(stream, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return stream.getvalue()


def long_form(kernels):
    """The long form of {kernel name: {metric: (unit, text)}}."""
    rows = [[*FIXED, "Section Name", "Metric Name", "Metric Unit", "Metric Value"]]
    for number, (name, metrics) in enumerate(kernels.items()):
        rows += [
            [*row(number, name), "Command line profiler metrics", metric, unit, text]
            for metric, (unit, text) in metrics.items()
        ]
    return table(*rows)


def wide_form(kernels):
    """The wide form (`--page raw`) of {kernel name: {metric: (unit, text)}}; '' where a kernel lacks a metric."""
    units = {metric: unit for metrics in kernels.values() for metric, (unit, _) in metrics.items()}
    rows = [[*FIXED, *units], [*[""] * len(FIXED), *units.values()]]
    for number, (name, metrics) in enumerate(kernels.items()):
        rows.append([*row(number, name), *(metrics.get(metric, ("", ""))[1] for metric in units)])
    return table(*rows)
