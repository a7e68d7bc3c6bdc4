"""Operator ↔ kernel ↔ counters: a torch trace and a counter report of the same program, brought together.

Neither file names the other's launches. Both list them in the order in which they happened, so the report is looked
for as a run of the trace's launches: the same names, grids and blocks, one after the other. What does not fit on
either side is listed with the reason, never dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from helpers.profiling.columns import NONE, around
from helpers.profiling.counters.record import CounterError, KernelRecord
from helpers.profiling.diagnosis.evidence import value
from helpers.profiling.joins import join
from helpers.profiling.kernel_names import base_name, same_kernel
from helpers.profiling.work import work_of

if TYPE_CHECKING:
    from helpers.profiling.trace import Event, Trace

MOST = 20_000_000  # pairs of launches that an alignment looks at


@dataclass(frozen=True)
class Launched:
    """One launch of a kernel in a trace.

    kernel: its name, '' where the trace recorded only that something was launched. operator: the innermost around
    the launch, '' without one. call: which call of an operator in the trace, -1 without one; kernels of one call
    share it. within: the annotation around it. grid and block: () where unknown. flop: of the whole operator call by
    a work model, None where there is none. seconds: that the kernel ran, 0 where unknown.
    """

    kernel: str
    operator: str = ""
    call: int = NONE
    within: str = ""
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    flop: float | None = None
    seconds: float = 0.0


class How(StrEnum):
    """RUN: the report is an unbroken run of the trace's launches of its kernels. ALIGNED: only in the same order."""

    RUN = "an unbroken run of launches"
    ALIGNED = "the longest common order"


class Why(StrEnum):
    """Why a launch or a record has no partner."""

    NAME = "the other side has no kernel of this name"
    SHAPE = "the other side has this name only with another grid, block or template"
    COUNT = "the other side has fewer of it, or in another place"


@dataclass(frozen=True)
class Pair:
    """A launch of the trace and its counters."""

    launched: Launched
    record: KernelRecord

    @property
    def slowdown(self) -> float | None:
        """How much longer it took under the counters: base clock, cold caches, serialised. None where unknown."""
        duration = value(self.record, "duration")
        return duration / self.launched.seconds if duration and self.launched.seconds else None


@dataclass(frozen=True)
class CounterJoin:
    """pairs and the two lists of unmatched ones, with the reason, hold every launch and every record exactly once.

    places: how many runs of the trace the report fits equally well; with several, as for repeated steps, the first
    was taken. All are in the order of launches.
    """

    pairs: tuple[Pair, ...]
    only_trace: tuple[tuple[Launched, Why], ...]
    only_report: tuple[tuple[KernelRecord, Why], ...]
    how: How
    places: int


def launched(trace: "Trace") -> tuple[Launched, ...]:
    """The kernels of a trace in the order of their launches; without kernels, the calls that launched some."""
    joins = join(trace)
    if not len(joins):
        return _calls_only(trace)
    events = trace.of("cpu_op")
    starts = joins.launches.start
    order = sorted(
        range(len(joins)),
        key=lambda row: int(starts[joins.launch[row]] if joins.launch[row] != NONE else joins.kernels.start[row]),
    )
    return tuple(
        _launched(
            events,
            int(joins.operator[row]),
            joins.kernels.name[row],
            within=joins.within[row],
            grid=tuple(joins.kernels.grid[row]),
            block=tuple(joins.kernels.block[row]),
            seconds=float(joins.kernels.duration[row]) / 1e9,
        )
        for row in order
    )


def _calls_only(trace: "Trace") -> tuple[Launched, ...]:
    """A trace that counted its kernels instead of timing them: the launch calls, with the innermost operator."""
    columns, events = trace.columns, trace.of("cpu_op")
    launches, annotations = columns.launches, columns.annotations
    operators, ranges = around(columns.operators, launches), around(annotations, launches)
    found = []
    for row in np.argsort(launches.start, kind="stable").tolist():
        if "LaunchKernel" in launches.name[row]:
            within = annotations.name[ranges[row]] if ranges[row] != NONE else ""
            found.append(_launched(events, int(operators[row]), "", within=within))
    return tuple(found)


def _launched(events: Sequence["Event"], call: int, kernel: str, **known: object) -> Launched:
    if call == NONE:
        return Launched(kernel, **known)
    work = work_of(events[call])
    return Launched(kernel, events[call].name, call, flop=work.flop if work else None, **known)


def join_counters(
    launches: Sequence[Launched], records: Sequence[KernelRecord], within: Sequence[str] = ()
) -> CounterJoin:
    """Give each record of a report its launch in the trace.

    within: for each record the name of its NVTX range, '' where unknown; then it must equal the launch's annotation.
    Raises `CounterError` when `within` is of another length, or both sides are too long to align.
    """
    if within and len(within) != len(records):
        raise CounterError(
            f"{len(within)} range names for {len(records)} records", mend="give one a record, '' where unknown"
        )
    fits = _fits(launches, records, within or ("",) * len(records))
    candidates = np.flatnonzero(fits.any(axis=1)) if len(records) else np.array([], int)
    runs = _runs(fits[candidates])
    if runs:
        rows, columns, how = candidates[runs[0] : runs[0] + len(records)], np.arange(len(records)), How.RUN
    else:
        rows, columns = _aligned(fits)
        how = How.ALIGNED
    return _result(launches, records, rows.tolist(), columns.tolist(), how, max(1, len(runs)))


def _fits(launches: Sequence[Launched], records: Sequence[KernelRecord], within: Sequence[str]) -> np.ndarray:
    """A mask (launches, records) of the pairs that may be the same launch. Each distinct pair is looked at once."""
    if len(launches) * len(records) > MOST:
        raise CounterError(
            f"{len(launches)} launches and {len(records)} records are too many to align",
            mend="hand in the launches of one step, or a report of fewer kernels",
        )
    left = [(one.kernel, one.grid, one.block, one.within) for one in launches]
    right = [(one.name, one.grid, one.block, name) for one, name in zip(records, within)]
    kinds, others = list(dict.fromkeys(left)), list(dict.fromkeys(right))
    table = np.array([[_agree(a, b) for b in others] for a in kinds], bool).reshape(len(kinds), len(others))
    rows = {kind: at for at, kind in enumerate(kinds)}
    columns = {kind: at for at, kind in enumerate(others)}
    ours, theirs = np.array([rows[kind] for kind in left], int), np.array([columns[kind] for kind in right], int)
    return table[np.ix_(ours, theirs)]


def _agree(one: tuple, other: tuple) -> bool:
    """Names, grids, blocks and ranges: what either side does not know fits anything."""
    return same_kernel(one[0], other[0]) and all(not a or not b or a == b for a, b in zip(one[1:], other[1:]))


def _runs(fits: np.ndarray) -> list[int]:
    """Where all records fit launches one after the other."""
    launches, records = fits.shape
    if not records or records > launches:
        return []
    places = np.ones(launches - records + 1, bool)
    for at in range(records):
        places &= fits[at : at + len(places), at]
        if not places.any():
            return []
    return np.flatnonzero(places).tolist()


def _aligned(fits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The largest set of fitting pairs in which both sides keep their order (longest common subsequence)."""
    launches, records = fits.shape
    best = np.zeros((launches + 1, records + 1), np.int32)
    for row in range(launches):
        best[row + 1, 1:] = np.maximum(best[row, 1:], best[row, :-1] + fits[row])
        np.maximum.accumulate(best[row + 1], out=best[row + 1])
    rows, columns, row, column = [], [], launches, records
    while row and column:
        if best[row, column] == best[row - 1, column]:
            row -= 1
        elif best[row, column] == best[row, column - 1]:
            column -= 1
        else:
            row, column = row - 1, column - 1
            rows.append(row)
            columns.append(column)
    return np.array(rows[::-1], int), np.array(columns[::-1], int)


def _result(launches, records, rows: list[int], columns: list[int], how: How, places: int) -> CounterJoin:
    used, matched = set(rows), set(columns)
    pairs = tuple(Pair(launches[row], records[column]) for row, column in zip(rows, columns))
    ours = [one.kernel for one in launches]
    theirs = [one.name for one in records]
    only_trace = tuple((one, _why(one.kernel, theirs)) for at, one in enumerate(launches) if at not in used)
    only_report = tuple((one, _why(one.name, ours)) for at, one in enumerate(records) if at not in matched)
    return CounterJoin(pairs, only_trace, only_report, how, places)


def _why(name: str, others: Sequence[str]) -> Why:
    """Judged by names alone: with a partner of the same name in vain, the grid or the place is what differs."""
    distinct = set(others) - {""}
    if not name or any(same_kernel(name, other) for other in distinct):
        return Why.COUNT
    return Why.SHAPE if any(base_name(name) == base_name(other) for other in distinct) else Why.NAME
