"""A trace as columns: one record of NumPy arrays per kind of interval, names kept once and coded."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Self

import numpy as np

NONE = -1
COPIES = ("gpu_memcpy", "gpu_memset")


@dataclass(frozen=True, eq=False)
class Coded:
    """A column with few distinct values: row i holds `values[codes[i]]`. codes: int32 (N,)."""

    values: tuple
    codes: np.ndarray

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows):
        """The value of one row, or the column of some rows (a mask, a slice or an array of indices)."""
        if isinstance(rows, (int, np.integer)):
            return self.values[self.codes[rows]]
        return Coded(self.values, self.codes[rows])

    def tolist(self) -> list:
        """The value of every row."""
        return [self.values[code] for code in self.codes.tolist()]

    def where(self, test: Callable[[object], bool]) -> np.ndarray:
        """A mask (N,) of the rows whose value passes `test`, which is called once per distinct value."""
        return self.map(test, bool)

    def map(self, number: Callable[[object], float], dtype: type) -> np.ndarray:
        """`number` of every row's value (N,), called once per distinct value."""
        return np.array([number(value) for value in self.values], dtype=dtype)[self.codes]


@dataclass(frozen=True, eq=False)
class Intervals:
    """N intervals of one kind, in the order of the trace.

    row: int64, the place of each in the whole trace. start and duration: int64 nanoseconds, so sums
    are exact. thread: (process, thread) of the host; (device, stream) of what ran on a device.
    """

    row: np.ndarray
    name: Coded
    thread: Coded
    start: np.ndarray
    duration: np.ndarray

    def __len__(self) -> int:
        return len(self.row)

    @property
    def end(self) -> np.ndarray:
        """int64 nanoseconds (N,)."""
        return self.start + self.duration

    @cached_property
    def parents(self) -> np.ndarray:
        """Index of the innermost interval of this record around each on its thread, -1 where there is none (N,)."""
        return parents_of(self.start, self.duration, self.thread.codes)

    def take(self, rows: np.ndarray) -> Self:
        """The same record of some rows."""
        return type(self)(**{one.name: getattr(self, one.name)[rows] for one in fields(self)})


@dataclass(frozen=True, eq=False)
class Operators(Intervals):
    """Calls of operators on the host.

    external_id: what kernels may repeat, 0 where there is none. shapes: of the inputs that are
    tensors, others (). element_bytes: of the inputs, 0 where unknown. sequence: the number that a
    forward operator shares with its backward one, -1 where there is none.
    """

    external_id: np.ndarray
    shapes: Coded
    element_bytes: Coded
    sequence: np.ndarray

    @cached_property
    def self_time(self) -> np.ndarray:
        """Nanoseconds of each without the operators that it called (N,)."""
        return self.duration - sums_by(self.parents, self.duration, len(self))


@dataclass(frozen=True, eq=False)
class Launches(Intervals):
    """Calls of the CUDA, HIP or other runtime and driver. correlation: shared with the work that a call starts."""

    external_id: np.ndarray
    correlation: np.ndarray

    @property
    def starts_work(self) -> np.ndarray:
        """A mask of the calls that put work on a device: kernels, copies, fills and graphs."""
        return self.name.where(starts_work)


@dataclass(frozen=True, eq=False)
class Kernels(Intervals):
    """Kernels on a device. grid and block: (x, y, z), () where unknown."""

    external_id: np.ndarray
    correlation: np.ndarray
    grid: Coded
    block: Coded


@dataclass(frozen=True, eq=False)
class Copies(Intervals):
    """Copies and fills on a device. bytes: moved."""

    external_id: np.ndarray
    correlation: np.ndarray
    bytes: np.ndarray


@dataclass(frozen=True, eq=False)
class Collectives(Intervals):
    """NCCL's kernels, or gloo's work on its own threads where no kernel was recorded.

    kind: all-gather, reduce-scatter, all-reduce or other communication. bytes: of this rank's input,
    0 where unknown.
    """

    kind: Coded
    bytes: np.ndarray


@dataclass(frozen=True, eq=False)
class Annotations(Intervals):
    """Ranges that the program or torch named: steps, the optimizer, a collective's call."""

    @property
    def is_step(self) -> np.ndarray:
        """A mask of the steps that `profiler.step()` marked."""
        return self.name.where(lambda name: name.startswith("ProfilerStep#"))


@dataclass(frozen=True, eq=False)
class Memory:
    """Allocations (bytes > 0) and frees (bytes < 0), when `profile_memory` was on.

    time: int64 nanoseconds. bytes, address, allocated and reserved (after it): int64. device: -1 for
    the host.
    """

    time: np.ndarray
    bytes: np.ndarray
    address: np.ndarray
    device: np.ndarray
    allocated: np.ndarray
    reserved: np.ndarray

    def __len__(self) -> int:
        return len(self.time)


def no_memory() -> Memory:
    """A trace without `profile_memory`."""
    return Memory(*(np.empty(0, np.int64) for _ in fields(Memory)))


@dataclass(frozen=True, eq=False)
class Columns:
    """All intervals of a trace as equally long columns, and a record for each kind of them.

    What a kind has no use for is 0, () or -1, as in the records.
    """

    name: Coded
    category: Coded
    thread: Coded
    start: np.ndarray
    duration: np.ndarray
    external_id: np.ndarray
    correlation: np.ndarray
    bytes: np.ndarray
    sequence: np.ndarray
    shapes: Coded
    element_bytes: Coded
    grid: Coded
    block: Coded
    memory: Memory = field(default_factory=no_memory)

    def __len__(self) -> int:
        return len(self.start)

    @property
    def row(self) -> np.ndarray:
        """0 … N-1."""
        return np.arange(len(self))

    def take(self, order: np.ndarray) -> "Columns":
        """The same trace with its intervals in another order."""
        columns = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "memory"}
        return Columns(**{name: column[order] for name, column in columns.items()}, memory=self.memory)

    def of(self, *categories: str) -> np.ndarray:
        """A mask of the rows of some categories."""
        return self.category.where(lambda category: category in categories)

    def intervals(self, mask: np.ndarray) -> Intervals:
        """What all kinds have in common, of some rows."""
        return self._record(Intervals, mask)

    @cached_property
    def operators(self) -> Operators:
        """`cpu_op`."""
        return self._record(Operators, self.of("cpu_op"))

    @cached_property
    def launches(self) -> Launches:
        """`cuda_runtime`, `cuda_driver` and those of other devices."""
        return self._record(Launches, self.category.where(lambda name: name.endswith(("_runtime", "_driver"))))

    @cached_property
    def kernels(self) -> Kernels:
        """`kernel`."""
        return self._record(Kernels, self.of("kernel"))

    @cached_property
    def copies(self) -> Copies:
        """`gpu_memcpy` and `gpu_memset`."""
        return self._record(Copies, self.of(*COPIES))

    @cached_property
    def device_work(self) -> Intervals:
        """Kernels and copies together."""
        return self.intervals(self.of("kernel", *COPIES))

    @cached_property
    def annotations(self) -> Annotations:
        """`user_annotation`: on the host only, since their shadows on a device repeat them."""
        return self._record(Annotations, self.of("user_annotation"))

    @cached_property
    def collectives(self) -> Collectives:
        """NCCL's kernels, or gloo's annotations where no kernel was recorded."""
        where = self.of("kernel") if len(self.kernels) else self.of("user_annotation")
        mask = where & self.name.where(is_collective)
        names = self.name[mask]
        kind = Coded(tuple(collective_kind(name) for name in names.values), names.codes)
        plain = self.intervals(mask)
        return Collectives(**vars(plain), kind=kind, bytes=self._payload(mask))

    def _payload(self, mask: np.ndarray) -> np.ndarray:
        """What the call says that it moves, else the size of its first input."""
        elements = self.shapes[mask].map(lambda shapes: math.prod(shapes[0]) if shapes and shapes[0] else 0, float)
        width = self.element_bytes[mask].map(lambda sizes: sizes[0] if sizes else 0, float)
        said = self.bytes[mask]
        return np.where(said > 0, said, np.clip(elements * width, 0, 2**62).astype(np.int64))

    def _record(self, kind: type, mask: np.ndarray):
        rows = np.flatnonzero(mask)
        return kind(**{one.name: getattr(self, one.name)[rows] for one in fields(kind)})


def starts_work(call: str) -> bool:
    """Whether a runtime call puts work on a device: a kernel, a graph, a copy or a fill."""
    if "Launch" in call:
        return "HostFunc" not in call
    return ("Memcpy" in call or "Memset" in call) and "Get" not in call


def is_collective(name: str) -> bool:
    """Whether a kernel or an annotation is NCCL's or gloo's; both spell it at the start of the name."""
    return name.lower().startswith(("gloo:", "nccl"))


def collective_kind(name: str) -> str:
    """The lane of a collective by its name, which NCCL has changed over its versions."""
    name = name.lower()
    if "gather" in name:
        return "all-gather"
    if "reducescatter" in name or "reduce_scatter" in name:
        return "reduce-scatter"
    return "all-reduce" if "reduce" in name else "other communication"


def parents_of(start: np.ndarray, duration: np.ndarray, thread: np.ndarray) -> np.ndarray:
    """Index of the innermost interval around each on the same thread, -1 where there is none (N,).

    Of two that start together the longer is outside; one that starts where another ends is not inside it.
    """
    order = np.lexsort((-duration, start, thread))
    starts, ends, threads = (column[order].tolist() for column in (start, start + duration, thread))
    above: list[int] = []
    for place, begin in enumerate(starts):
        parent = place - 1 if place and threads[place] == threads[place - 1] else NONE
        while parent != NONE and ends[parent] <= begin:
            parent = above[parent]
        above.append(parent)
    places = np.array(above, dtype=np.int64)
    parents = np.full(len(order), NONE)
    parents[order[places != NONE]] = order[places[places != NONE]]
    return parents


def sums_by(group: np.ndarray, number: np.ndarray, groups: int) -> np.ndarray:
    """The sum of int64 `number` over the rows of each group 0 … groups-1; rows of group -1 are left out."""
    found = np.zeros(groups, dtype=np.int64)
    kept = group != NONE
    np.add.at(found, group[kept], number[kept])
    return found


def around(outer: Intervals, others: Intervals) -> np.ndarray:
    """Index of the innermost of `outer` that runs on the thread of each of `others` as it starts, else -1 (N,)."""
    found = np.full(len(others), NONE)
    for thread in np.unique(others.thread.codes):
        mine = np.flatnonzero(others.thread.codes == thread)
        there = np.flatnonzero(outer.thread.codes == thread)
        if not len(there):
            continue
        there = there[np.lexsort((-outer.duration[there], outer.start[there]))]
        when = others.start[mine]
        place = np.searchsorted(outer.start[there], when, side="right") - 1
        inside = np.where(place < 0, NONE, there[place])
        while (over := (inside != NONE) & (outer.end[inside] <= when)).any():
            inside[over] = outer.parents[inside[over]]
        found[mine] = inside
    return found
