"""Reading a torch trace (Kineto's Chrome JSON) into records, and saying what is wrong with it."""

import gzip
import json
import math
import zlib
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from helpers.errors import CourseError

KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")


class TraceError(CourseError):
    """A file that is not a whole torch trace."""


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
    """What one operator took in a trace. total: with what it called; self_time: without, seconds."""

    name: str
    calls: int
    total: float
    self_time: float


@dataclass(frozen=True)
class Trace:
    """The intervals of one process, sorted by start. rank and world: of a distributed run, else 0 and 1."""

    events: tuple[Event, ...]
    rank: int = 0
    world: int = 1

    def of(self, *categories: str) -> tuple[Event, ...]:
        """The events of some categories, as `cpu_op`, `user_annotation`, `kernel`."""
        return tuple(event for event in self.events if event.category in categories)

    @cached_property
    def self_times(self) -> dict[int, float]:
        """Seconds of each operator without the operators that it called, by index in `of("cpu_op")`."""
        return self_times(self.of("cpu_op"))

    def operators(self) -> tuple[OperatorTime, ...]:
        """The operators, the one with the most self time first.

        A call inside a call of the same operator counts in `calls`, not again in `total`.
        """
        calls, total, own = defaultdict(int), defaultdict(float), defaultdict(float)
        events = self.of("cpu_op")
        nested = _inside_its_own(events)
        for index, event in enumerate(events):
            calls[event.name] += 1
            own[event.name] += self.self_times[index]
            total[event.name] += 0.0 if index in nested else event.duration
        rows = (OperatorTime(name, calls[name], total[name], own[name]) for name in calls)
        return tuple(sorted(rows, key=lambda row: -row.self_time))

    def problems(self) -> tuple[str, ...]:
        """What makes conclusions from this trace doubtful; () when nothing does."""
        found = []
        if not self.of("cpu_op"):
            found.append("no operator was recorded: the schedule may never have been active")
        steps = [event for event in self.of("user_annotation") if event.name.startswith("ProfilerStep#")]
        if not steps:
            found.append("no step is marked: call profiler.step() after each")
        elif steps[0].name == "ProfilerStep#0":
            found.append("the first step is in it: allocations and start-up are measured, not the steady state")
        launches = [event for event in self.of("cuda_runtime", "cuda_driver") if "Launch" in event.name]
        if launches and not self.of("kernel"):
            found.append("kernels were launched but none was recorded: another tool may hold the counters")
        return tuple(found)


def self_times(events: tuple[Event, ...]) -> dict[int, float]:
    """Duration minus that of the direct children, by index; children lie within on the same thread."""
    own = {index: event.duration for index, event in enumerate(events)}
    for child, parent in _parents(events).items():
        own[parent] -= events[child].duration
    return own


def _parents(events: tuple[Event, ...]) -> dict[int, int]:
    """Index of the innermost enclosing event on the same thread, where there is one."""
    parents: dict[int, int] = {}
    stacks: dict[tuple, list[int]] = defaultdict(list)
    order = sorted(range(len(events)), key=lambda i: (events[i].start, -events[i].duration))
    for index in order:
        stack = stacks[events[index].thread]
        while stack and events[stack[-1]].end <= events[index].start:
            stack.pop()
        if stack:
            parents[index] = stack[-1]
        stack.append(index)
    return parents


def _inside_its_own(events: tuple[Event, ...]) -> set[int]:
    parents = _parents(events)
    nested = set()
    for index in parents:
        above = parents[index]
        while above is not None:
            if events[above].name == events[index].name:
                nested.add(index)
                break
            above = parents.get(above)
    return nested


def device_seconds(trace: Trace) -> dict[int, float]:
    """Seconds that kernels ran, by the external id of the operator that launched them; {} on a CPU.

    Kernels without an id, as those of a CUDA graph, are left out.
    """
    found: dict[int, float] = defaultdict(float)
    for kernel in trace.of("kernel"):
        if kernel.external_id:
            found[kernel.external_id] += kernel.duration
    return dict(found)


def read_trace(path: Path) -> Trace:
    """Read a `.json` or `.json.gz` trace.

    Raises `TraceError` for a file that is absent, empty, cut short, not a trace, or that holds a
    time that is not a number: a record or a named error, never a silently shorter list.
    """
    content = _parse(_text(path), path)
    events = content.get("traceEvents") if isinstance(content, dict) else None
    if not isinstance(events, list):
        raise TraceError("no traceEvents: not a torch trace", where=str(path), mend=_AGAIN)
    found = [_event(entry, path) for entry in events if isinstance(entry, dict) and entry.get("ph") == "X"]
    if not found:
        raise TraceError("the trace holds no interval", where=str(path), mend=_AGAIN)
    job = content.get("distributedInfo") or {}
    ordered = tuple(sorted(found, key=lambda event: (event.start, -event.duration)))
    return Trace(ordered, job.get("rank", 0), job.get("world_size", 1))


_AGAIN = "capture it again, and read it when the profiler has closed"


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise TraceError(f"cannot be read: {type(error).__name__}: {error}", where=str(path), mend=_AGAIN) from None


def _parse(text: str, path: Path) -> object:
    if not text.strip():
        raise TraceError("the file is empty", where=str(path), mend=_AGAIN)
    try:
        # Kineto writes raw control characters into some names, which strict JSON forbids.
        return json.loads(text, strict=False)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"not JSON, or cut short: {error}", where=str(path), mend=_AGAIN) from None


def _event(entry: dict, path: Path) -> Event:
    try:
        start, duration = float(entry["ts"]), float(entry.get("dur", 0.0))
    except (KeyError, TypeError, ValueError):
        start = duration = math.nan
    if not (math.isfinite(start) and math.isfinite(duration) and duration >= 0):
        name = str(entry.get("name"))
        raise TraceError(f"event {name!r} has no valid time", where=str(path), mend=_AGAIN)
    arguments = entry.get("args") if isinstance(entry.get("args"), dict) else {}
    return Event(
        name=str(entry.get("name", "")),
        category=str(entry.get("cat", "")),
        start=start * 1e-6,
        duration=duration * 1e-6,
        thread=(entry.get("pid"), entry.get("tid")),
        shapes=tuple(_shape(dims) for dims in _list(arguments.get("Input Dims"))),
        bytes_per_element=tuple(SIZES.get(str(kind), 0) for kind in _list(arguments.get("Input type"))),
        external_id=identifier if isinstance(identifier := arguments.get("External id"), int) else 0,
    )


SIZES = {
    "float": 4,
    "double": 8,
    "c10::Half": 2,
    "c10::BFloat16": 2,
    "int": 4,
    "long": 8,
    "long int": 8,
    "unsigned char": 1,
    "bool": 1,
}


def _list(value: object) -> list:
    return value if isinstance(value, list) else []


def _shape(dims: object) -> tuple[int, ...]:
    whole = isinstance(dims, list) and all(isinstance(size, int) for size in dims)
    return tuple(dims) if whole else ()
