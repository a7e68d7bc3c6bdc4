"""A torch trace: read whole or refused, as columns for the many and as an `Event` for the few."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from helpers.profiling.columns import NONE, Coded, Columns, parents_of, sums_by
from helpers.profiling.health import health
from helpers.profiling.joins import join, operator_seconds
from helpers.profiling.kineto import TraceError, read_columns

ORDERS = ("self_time", "total", "device_self", "device_total")
BLOCK = 4096


@dataclass(frozen=True)
class Event:
    """One interval of a trace.

    start and duration: seconds; starts count from the trace's clock, which the traces of one
    machine share. thread: (process, thread). shapes: of the inputs that are tensors, when shapes
    were recorded; others are (). bytes_per_element: of the inputs, 0 where unknown. external_id:
    what a kernel shares with the operator that launched it, 0 where there is none.
    """

    name: str
    category: str
    start: float
    duration: float
    thread: tuple
    shapes: tuple[tuple[int, ...], ...] = ()
    bytes_per_element: tuple[int, ...] = ()
    external_id: int = 0

    @property
    def end(self) -> float:
        """The end in seconds."""
        return self.start + self.duration


@dataclass(frozen=True)
class OperatorTime:
    """What one operator took in a trace, in seconds.

    total: with what it called; self_time: without. device_total and device_self: the same of the
    kernels that were launched, 0 on a CPU.
    """

    name: str
    calls: int
    total: float
    self_time: float
    device_total: float = 0.0
    device_self: float = 0.0


class Events(Sequence):
    """The intervals of columns as `Event`s, each made when it is asked for."""

    def __init__(self, columns: Columns):
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return self.at(np.arange(len(self))[index])
        return self.at(np.arange(len(self))[[index]])[0]

    def __iter__(self) -> Iterator[Event]:
        for first in range(0, len(self), BLOCK):
            yield from self[first : first + BLOCK]

    def at(self, rows: np.ndarray) -> tuple[Event, ...]:
        """The events of some rows."""
        own = self.columns
        columns = (own.name, own.category, own.start / 1e9, own.duration / 1e9)
        columns += (own.thread, own.shapes, own.element_bytes, own.external_id)
        return tuple(Event(*values) for values in zip(*(column[rows].tolist() for column in columns)))


@dataclass(frozen=True)
class Trace:
    """The intervals of one process, sorted by start.

    rank and world: of a distributed run, else 0 and 1. devices: names of the GPUs, where they were
    recorded.
    """

    events: Sequence[Event]
    rank: int = 0
    world: int = 1
    devices: tuple[str, ...] = ()

    @cached_property
    def columns(self) -> Columns:
        """The same intervals as columns, with a record for each kind: operators, launches, kernels, …"""
        return self.events.columns if isinstance(self.events, Events) else columns_of(self.events)

    def of(self, *categories: str) -> tuple[Event, ...]:
        """The events of some categories, as `cpu_op`, `user_annotation`, `kernel`."""
        if isinstance(self.events, Events):
            return self.events.at(np.flatnonzero(self.columns.of(*categories)))
        return tuple(event for event in self.events if event.category in categories)

    @cached_property
    def self_times(self) -> dict[int, float]:
        """Seconds of each operator without the operators that it called, by index in `of("cpu_op")`."""
        return dict(enumerate((self.columns.operators.self_time / 1e9).tolist()))

    def operators(self, by: str = "self_time") -> tuple[OperatorTime, ...]:
        """The operators, the one with the most time first; by: a time of `OperatorTime`.

        A call inside a call of the same operator counts in `calls`, not again in the totals.
        Raises `ValueError` for another `by`.
        """
        if by not in ORDERS:
            raise ValueError(f"operators are ordered by {', '.join(ORDERS)}, not by {by!r}")
        operators, joins = self.columns.operators, join(self)
        names = len(operators.name.values)
        code = operators.name.codes.astype(np.int64)
        outer = np.where(_inside_its_own(operators.parents, code), NONE, code)
        calls = np.bincount(code, minlength=names)
        sums = (
            sums_by(outer, operators.duration, names),
            sums_by(code, operators.self_time, names),
            sums_by(outer, joins.total_time, names),
            sums_by(code, joins.self_time, names),
        )
        rows = (
            OperatorTime(operators.name.values[index], int(calls[index]), *(float(one[index]) / 1e9 for one in sums))
            for index in np.flatnonzero(calls).tolist()
        )
        return tuple(sorted(rows, key=lambda row: -getattr(row, by)))

    def problems(self) -> tuple[str, ...]:
        """What makes conclusions from this trace doubtful, in a sentence each; `health` says more of it."""
        return tuple(problem.what for problem in health(self))


def read_trace(path: Path) -> Trace:
    """Read a `.json` or `.json.gz` trace.

    Raises `TraceError` for a file that is absent, empty, cut short, not a trace, or that holds a
    time that is not a number: a record or a named error, never a silently shorter list.
    """
    columns, header = read_columns(Path(path))
    return Trace(Events(columns), header.rank, header.world, header.devices)


def read_ranks(paths: Sequence[Path]) -> tuple[Trace, ...]:
    """The traces of several ranks of one run, in the order of the ranks.

    Raises `TraceError` for none, for two of one rank, and for ranks of runs of different sizes.
    """
    traces = sorted((read_trace(path) for path in paths), key=lambda trace: trace.rank)
    if not traces:
        raise TraceError("there is no trace to read", mend="capture one on each rank first")
    ranks, worlds = [trace.rank for trace in traces], sorted({trace.world for trace in traces})
    if len(set(ranks)) < len(ranks) or len(worlds) > 1:
        raise TraceError(
            f"the traces are not of one run: ranks {ranks} of {' and '.join(map(str, worlds))}",
            where=", ".join(map(str, paths)),
            mend="capture one on each rank of the same run",
        )
    return tuple(traces)


def columns_of(events: Sequence[Event]) -> Columns:
    """The columns of events made by hand, in their order."""
    nothing = np.zeros(len(events), np.int64)
    empty = Coded(((),), np.zeros(len(events), np.int32))
    return Columns(
        name=_coded([event.name for event in events]),
        category=_coded([event.category for event in events]),
        thread=_coded([event.thread for event in events]),
        start=_nanoseconds([event.start for event in events]),
        duration=_nanoseconds([event.duration for event in events]),
        external_id=np.array([event.external_id for event in events], np.int64),
        correlation=nothing,
        bytes=nothing,
        sequence=nothing - 1,
        shapes=_coded([event.shapes for event in events]),
        element_bytes=_coded([event.bytes_per_element for event in events]),
        grid=empty,
        block=empty,
    )


def _coded(values: list) -> Coded:
    codes = {value: code for code, value in enumerate(dict.fromkeys(values))}
    return Coded(tuple(codes), np.array([codes[value] for value in values], np.int32))


def _nanoseconds(seconds: list[float]) -> np.ndarray:
    return np.rint(np.array(seconds, np.float64) * 1e9).astype(np.int64)


def self_times(events: Sequence[Event]) -> dict[int, float]:
    """Duration minus that of the direct children, by index; children lie within on the same thread."""
    columns = columns_of(events)
    parents = parents_of(columns.start, columns.duration, columns.thread.codes)
    own = columns.duration - sums_by(parents, columns.duration, len(columns))
    return dict(enumerate((own / 1e9).tolist()))


def _inside_its_own(parents: np.ndarray, code: np.ndarray) -> np.ndarray:
    """A mask of the calls that lie, at any depth, inside a call of the same operator."""
    nested = np.zeros(len(parents), bool)
    rows = np.flatnonzero(parents != NONE)
    above = parents[rows]
    while len(rows):
        nested[rows] |= code[above] == code[rows]
        rows, above = rows[parents[above] != NONE], parents[above][parents[above] != NONE]
    return nested


def device_seconds(trace: Trace) -> dict[int, float]:
    """Seconds that kernels ran, by the external id of the operator that launched them; {} on a CPU.

    Kernels that join to no operator, as those of a CUDA graph, are left out.
    """
    return operator_seconds(trace)
