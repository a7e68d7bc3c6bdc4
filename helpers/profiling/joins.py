"""From an operator to the kernels that it put on a device, through the call that launched them.

A kernel shares a correlation with its launch, and may repeat the External id of the operator that was
running. That id is believed only where it fits: old traces repeat the correlation there instead, and
such a number meets that of an unrelated operator by chance. Otherwise the innermost operator that ran
on the launching thread is taken. What joins to nothing is listed with the reason, never dropped.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from helpers.profiling.columns import NONE, Coded, Columns, Kernels, Launches, Operators, around, sums_by

if TYPE_CHECKING:
    from helpers.profiling.trace import Trace


class How(StrEnum):
    """What a kernel was joined to its operator by."""

    EXTERNAL_ID = "External id"
    LAUNCH = "launch within the operator"


class Reason(StrEnum):
    """Why a kernel belongs to no operator."""

    NO_IDS = "neither a correlation nor a fitting External id"
    NO_LAUNCH = "its launch was not recorded"
    AMBIGUOUS = "several launches share its correlation"
    GRAPH = "a CUDA graph launched it: which operator was captured is lost"
    NO_OPERATOR = "no operator was running at its launch"


OUTCOMES = (*How, *Reason)


@dataclass(frozen=True)
class Joined:
    """One kernel and its operator. launch: the runtime call, "" where it was not recorded. Seconds."""

    kernel: str
    launch: str
    operator: str
    how: How
    start: float
    duration: float


@dataclass(frozen=True)
class Unjoined:
    """One kernel that belongs to no operator. within: the annotation around its launch, "" without one."""

    kernel: str
    reason: Reason
    within: str
    start: float
    duration: float


@dataclass(frozen=True, eq=False)
class Joins:
    """Every kernel of a trace with what became of it.

    launch and operator: index into `launches` and `operators` for each kernel, -1 where there is none.
    outcome: how it was joined, or the reason why not. within: name of the annotation around the launch.
    """

    kernels: Kernels
    launches: Launches
    operators: Operators
    launch: np.ndarray
    operator: np.ndarray
    outcome: Coded
    within: Coded

    def __len__(self) -> int:
        return len(self.kernels)

    @property
    def counts(self) -> dict[How | Reason, int]:
        """How many kernels had each outcome; the outcomes that occurred, in the order of the enums."""
        found = Counter(self.outcome.tolist())
        return {outcome: found[outcome] for outcome in OUTCOMES if found[outcome]}

    @property
    def joined(self) -> Iterator[Joined]:
        """The kernels with an operator, in the order of the trace."""
        for row in np.flatnonzero(self.operator != NONE).tolist():
            launch = self.launches.name[self.launch[row]] if self.launch[row] != NONE else ""
            operator = self.operators.name[self.operator[row]]
            yield Joined(self.kernels.name[row], launch, operator, self.outcome[row], *self._when(row))

    @property
    def unjoined(self) -> tuple[Unjoined, ...]:
        """The kernels without an operator, in the order of the trace."""
        return tuple(
            Unjoined(self.kernels.name[row], self.outcome[row], self.within[row], *self._when(row))
            for row in np.flatnonzero(self.operator == NONE).tolist()
        )

    def _when(self, row: int) -> tuple[float, float]:
        return float(self.kernels.start[row]) / 1e9, float(self.kernels.duration[row]) / 1e9

    @cached_property
    def self_time(self) -> np.ndarray:
        """Nanoseconds of the kernels that each operator launched itself (operators,)."""
        return sums_by(self.operator, self.kernels.duration, len(self.operators))

    @cached_property
    def total_time(self) -> np.ndarray:
        """Nanoseconds of the kernels of each operator and of those that it called (operators,)."""
        total, parents = self.self_time.tolist(), self.operators.parents.tolist()
        for index in np.lexsort((self.operators.duration, -self.operators.start)).tolist():
            if parents[index] != NONE:
                total[parents[index]] += total[index]
        return np.array(total, dtype=np.int64)


def join(trace: "Trace") -> Joins:
    """Join the kernels of a trace to the operators that launched them; joined and unjoined are all kernels."""
    columns = trace.columns
    kernels, launches, operators = columns.kernels, columns.launches, columns.operators
    launch, shared = match(kernels.correlation, launches.correlation)
    known = launch != NONE
    by_id = fitting_ids(columns)
    enclosing = np.full(len(kernels), NONE)
    enclosing[known] = around(operators, launches)[launch[known]]
    on_graph = np.zeros(len(kernels), bool)
    on_graph[known] = launches.name.where(lambda name: "GraphLaunch" in name)[launch[known]]
    operator = np.where(on_graph, NONE, np.where(by_id != NONE, by_id, enclosing))
    outcome = np.select(
        [on_graph, by_id != NONE, enclosing != NONE, known, shared, kernels.correlation != 0],
        [OUTCOMES.index(one) for one in (Reason.GRAPH, *How, Reason.NO_OPERATOR, Reason.AMBIGUOUS, Reason.NO_LAUNCH)],
        OUTCOMES.index(Reason.NO_IDS),
    )
    within = _annotation(columns, launches, launch)
    return Joins(kernels, launches, operators, launch, operator, Coded(OUTCOMES, outcome), within)


def match(wanted: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each of `wanted` the index of the only equal key, else -1, and a mask of those with several.

    0 means no key.
    """
    order = np.argsort(keys, kind="stable")
    first, last = (np.searchsorted(keys[order], wanted, side=side) for side in ("left", "right"))
    several = (last - first > 1) & (wanted != 0)
    only = (last - first == 1) & (wanted != 0)
    found = np.full(len(wanted), NONE)
    found[only] = order[first[only]]
    return found, several


def fitting_ids(columns: Columns) -> np.ndarray:
    """For each kernel the index of the operator with its External id, else -1 (kernels,).

    Only of one that was running at the launch, on its thread: other equal numbers are chance. Where the
    launch was not recorded, an operator that began before the kernel will do.
    """
    kernels, launches, operators = columns.kernels, columns.launches, columns.operators
    candidate, _ = match(kernels.external_id, operators.external_id)
    launch, _ = match(kernels.correlation, launches.correlation)
    rows = np.flatnonzero(candidate != NONE)
    index, call = candidate[rows], launch[rows]
    fits = operators.start[index] <= kernels.start[rows]
    seen = call != NONE
    index, call = index[seen], call[seen]
    fits[seen] = (
        (operators.thread.codes[index] == launches.thread.codes[call])
        & (operators.start[index] <= launches.start[call])
        & (launches.start[call] <= operators.end[index])
    )
    candidate[rows[~fits]] = NONE
    return candidate


def _annotation(columns: Columns, launches: Launches, launch: np.ndarray) -> Coded:
    """The innermost annotation around each launch on its thread."""
    annotations = columns.annotations
    names = (*annotations.name.values, "")
    at = around(annotations, launches)
    codes = np.full(len(launch), len(names) - 1, np.int32)
    rows = np.where(launch == NONE, NONE, at[launch] if len(launches) else launch)
    codes[rows != NONE] = annotations.name.codes[rows[rows != NONE]]
    return Coded(names, codes)


def operator_seconds(trace: "Trace") -> dict[int, float]:
    """Seconds that kernels ran, by the External id of the operator that launched them; {} on a CPU."""
    joins = join(trace)
    found: Counter[int] = Counter()
    for index in np.flatnonzero(joins.self_time).tolist():
        found[int(joins.operators.external_id[index])] += int(joins.self_time[index])
    return {identifier: total / 1e9 for identifier, total in found.items() if identifier}
