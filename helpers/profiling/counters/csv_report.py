"""Reports that Nsight Compute prints with `--csv`: the long form, the wide one (`--page raw`), the details page.

Before the table a file may hold a byte order mark, `==PROF==` lines and whatever the program printed; one
file may hold several tables, of several runs. The table itself is read whole or not at all.
"""

import csv
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from helpers.profiling.counters.aliases import metric_name
from helpers.profiling.counters.record import CounterError, KernelRecord, Source
from helpers.profiling.counters.units import base

ROW = re.compile(r'"\d*",')
BARE = re.compile(r"\d*,")
LOG = re.compile(r'==PROF== Profiling ".*?" - (\d+)')
DESCRIPTION = ("Kernel Name", "Block Size", "Grid Size", "CC")
FIXED = {"ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size"}
FIXED |= {"Grid Size", "Device", "CC", "Section Name", "Kernel Time", "Invocations"}
NAME, CAPABILITY = "device__attribute_display_name", "device__attribute_compute_capability"


@dataclass
class _Kernel:
    """One kernel while its rows come in. `metrics` keeps the order of the file, and the labels' raw cells."""

    key: str
    fixed: dict[str, str]
    metrics: dict[str, float] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    rules: list[tuple[str, str]] = field(default_factory=list)

    def take(self, metric: str, unit: str, text: str, where: str) -> None:
        try:
            value = base(text, unit, metric)
        except CounterError as error:
            raise CounterError(error.what, where=f"{where}, {metric}", mend=error.mend) from None
        if value is None:
            self.texts[metric] = text
        else:
            self.metrics.setdefault(metric, value)

    def record(self, source: Source) -> KernelRecord:
        return KernelRecord(
            name=self.fixed.get("Kernel Name", ""),
            device=self.texts.get(NAME, ""),
            capability=_capability(self.fixed.get("CC", "")),
            grid=_triple(self.fixed.get("Grid Size", "")),
            block=_triple(self.fixed.get("Block Size", "")),
            metrics=self.metrics,
            rules=tuple(self.rules),
            source=source,
            breakdowns={
                name.removeprefix("breakdown:"): tuple(text.split(","))
                for name, text in self.texts.items()
                if name.startswith("breakdown:") and text
            },
        )


def read_csv(text: str, source: Source) -> tuple[KernelRecord, ...]:
    """The kernels of a `--csv` output, in the order of the file.

    Raises `CounterError` for a text without a table, a damaged or cut row, and a kernel that the log names
    but the table lacks.
    """
    lines = text.splitlines(keepends=True)
    headers = [index for index, line in enumerate(lines) if is_header(line)]
    if not headers:
        raise CounterError(
            "no table is in this file", where=source.file, mend="collect with --csv, and read that file"
        )
    kernels: list[_Kernel] = []
    for start, end in zip(headers, [*headers[1:], len(lines)]):
        header = next(csv.reader([lines[start]]))
        rows = list(_rows(lines, start + 1, end, source.file))
        kernels += _long(header, rows, source.file) if "Metric Name" in header else _wide(header, rows, source.file)
    if not kernels:
        raise CounterError("the table has no rows: no kernel was profiled", where=source.file, mend=NO_KERNEL)
    check_log(text, len(kernels), source.file)
    check_last([list(kernel.metrics) for kernel in kernels], source.file)
    return tuple(kernel.record(source) for kernel in kernels)


NO_KERNEL = "check the kernel filter (-k) and the launches skipped (-s), and that the program launches a kernel"


def is_header(line: str) -> bool:
    """Whether a line heads a table of kernels."""
    return "Kernel Name" in line and line.lstrip("\ufeff").lstrip().startswith(('"ID",', "ID,"))


def check_log(text: str, found: int, where: str) -> None:
    """Raise `CounterError` when the `==PROF==` lines name more kernels than were found: the file is cut."""
    numbers = [int(number) for number in LOG.findall(text)]
    profiled = max(numbers, default=-1) + 1
    if numbers and found < profiled - min(numbers):
        raise CounterError(
            f"{profiled - min(numbers)} kernels were profiled, {found} are in the file: it is cut",
            where=where,
            mend="copy the file again, or collect again",
        )


def check_last(metrics: list[list[str]], where: str) -> None:
    """Raise `CounterError` when the last kernel has only the first metrics of the one before: a cut between rows."""
    if len(metrics) > 1 and len(metrics[-1]) < len(metrics[-2]) and metrics[-2][: len(metrics[-1])] == metrics[-1]:
        raise CounterError(
            f"the last kernel has the first {len(metrics[-1])} of {len(metrics[-2])} metrics: the file is cut",
            where=where,
            mend="copy the file again, or collect again",
        )


def _rows(lines: list[str], start: int, end: int, where: str) -> Iterable[tuple[int, list[str]]]:
    """(line number, cells) of each row; a row may span lines, and other output may stand between rows.

    A line that begins like a row and is none is a row that was cut.
    """
    index = start
    row = ROW if '"' in lines[start - 1] else BARE
    while index < end:
        line, first = lines[index], index + 1
        index += 1
        if not row.match(line):
            if '","' in line or line.startswith('"') or line.strip().isdigit():
                raise _damaged(f"line {first} is no row of the table", where)
            continue
        while line.count('"') % 2 and index < end and not row.match(lines[index]):
            line += lines[index]
            index += 1
        if line.count('"') % 2 or line.endswith(","):
            raise _damaged(f"the row at line {first} does not end", where)
        try:
            yield first, next(csv.reader(io.StringIO(line), strict=True))
        except csv.Error as error:
            raise _damaged(f"the row at line {first} is damaged: {error}", where) from None


def _damaged(what: str, where: str) -> CounterError:
    return CounterError(
        f"{what}: the file is cut or damaged", where=where, mend="copy the file again, or collect again"
    )


def _long(header: list[str], rows: list, where: str) -> list[_Kernel]:
    """One row per metric or rule; the rows of one kernel stand together, under one ID."""
    value_at = _column(header, "Metric Value", where)
    rule_at = header.index("Rule Name") if "Rule Name" in header else None
    kernels: list[_Kernel] = []
    for line, cells in rows:
        if len(cells) <= value_at or len(cells) > len(header):
            raise _damaged(f"the row at line {line} has {len(cells)} of {len(header)} cells", where)
        row = dict(zip(header, cells))
        kernel = _kernel_of(row, kernels, f"{where}, line {line}")
        if row["Metric Name"]:
            kernel.take(
                metric_name(row.get("Section Name", ""), row["Metric Name"]),
                row.get("Metric Unit", ""),
                row["Metric Value"],
                f"{where}, line {line}",
            )
        elif rule_at is not None and len(cells) == len(header):
            kernel.rules.append((row["Rule Name"], _rule_text(row)))
        else:
            raise _damaged(f"the row at line {line} holds neither a metric nor a rule", where)
    return kernels


def _kernel_of(row: dict[str, str], kernels: list[_Kernel], where: str) -> _Kernel:
    fixed = {name: row[name] for name in FIXED & row.keys() if name not in ("Section Name",)}
    if kernels and kernels[-1].key == row["ID"]:
        if kernels[-1].fixed != fixed:
            raise CounterError(
                f"kernel {row['ID']} changes its name or launch: the file is damaged",
                where=where,
                mend="copy it again",
            )
        return kernels[-1]
    if any(kernel.key == row["ID"] for kernel in kernels):
        raise CounterError(f"kernel {row['ID']} comes twice: the file is damaged", where=where, mend="copy it again")
    kernels.append(_Kernel(row["ID"], fixed))
    return kernels[-1]


def _rule_text(row: dict[str, str]) -> str:
    speedup = row.get("Estimated Speedup", "")
    about = f" Estimated speedup: {speedup} % ({row.get('Estimated Speedup Type', '')})." if speedup else ""
    return row["Rule Description"] + about


def _wide(header: list[str], rows: list, where: str) -> list[_Kernel]:
    """One row per kernel and one column per metric, under a row of units."""
    if not rows or rows[0][1][0]:
        raise CounterError(
            "the table has no row of units, so its numbers mean nothing",
            where=where,
            mend="export it with  ncu --import REPORT --page raw --csv --print-units base",
        )
    units, kernels = rows[0][1], []
    if len(units) != len(header):
        raise _damaged(f"the row of units has {len(units)} of {len(header)} cells", where)
    for line, cells in rows[1:]:
        if len(cells) != len(header):
            raise _damaged(f"the row at line {line} has {len(cells)} of {len(header)} cells", where)
        kernel = _kernel_of(dict(zip(header, cells)), kernels, f"{where}, line {line}")
        if kernel.metrics or kernel.texts:
            raise CounterError(
                f"kernel {kernel.key} comes twice", where=f"{where}, line {line}", mend="copy it again"
            )
        for name, unit, cell in zip(header, units, cells):
            if name not in FIXED and cell.strip():
                kernel.take(name, unit, cell, f"{where}, line {line}")
    return kernels


def _column(header: list[str], name: str, where: str) -> int:
    if name not in header or len(set(header)) != len(header):
        raise _damaged("the head of the table lacks a column, or has one twice", where)
    return header.index(name)


def _triple(text: str) -> tuple[int, ...]:
    found = re.fullmatch(r"\(\s*(\d+),\s*(\d+),\s*(\d+)\)", text.strip())
    return tuple(map(int, found.groups())) if found else ()


def _capability(text: str) -> tuple[int, int] | None:
    found = re.fullmatch(r"(\d+)\.(\d+)", text.strip())
    return (int(found[1]), int(found[2])) if found else None
