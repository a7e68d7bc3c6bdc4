"""Where the time of a trace goes: busy or idle, compute or communication, and what the device waits for."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from helpers.errors import CourseError
from helpers.profiling.columns import COPIES, NONE, Columns, Intervals, Kernels, is_collective
from helpers.profiling.intervals import Spans, cover
from helpers.profiling.joins import match

if TYPE_CHECKING:
    from helpers.profiling.trace import Trace

BUSY_ENOUGH = 0.7
HOST_BOUND, BUSY, UNKNOWN = "host-bound", "busy", "unknown"


class BreakdownError(CourseError):
    """A window in which there is nothing to break down."""


@dataclass(frozen=True)
class Evidence:
    """One number that a verdict rests on, with its unit."""

    what: str
    value: float
    unit: str


@dataclass(frozen=True)
class Place:
    """A stream of a device, or a thread of the host in a trace without kernels. Seconds.

    activities: kernels and copies, or operators. idle: between the first and the last of them.
    host_wait: the part of idle that ends with work launched after the previous work had ended.
    """

    name: str
    activities: int
    busy: float
    idle: float
    host_wait: float


@dataclass(frozen=True)
class Breakdown:
    """The time of one rank between two times, in seconds. start: after the first interval of the trace.

    on_device: whether kernels were recorded; without any, operators and gloo's work take their place.
    busy: some stream computed, communicated or copied. compute, communication, copies: the time that
    each covers; they may overlap. overlap: communication while something computed. host_wait: the idle
    time that ends with work launched only after the device had fallen idle, or that ends the window.
    launches: calls in the whole trace that put work on a device. kernels: how many began in the window;
    short_kernels: those shorter than the call that launched them. kernel, launch and queue: medians of a
    kernel, of its launch, and from the start of the launch to that of the kernel.
    """

    rank: int
    on_device: bool
    start: float
    seconds: float
    busy: float
    compute: float
    communication: float
    copies: float
    overlap: float
    host_wait: float
    launches: int
    kernels: int
    short_kernels: int
    kernel: float
    launch: float
    queue: float
    places: tuple[Place, ...]

    @property
    def idle(self) -> float:
        """Seconds in which nothing ran."""
        return self.seconds - self.busy

    @property
    def busy_share(self) -> float:
        """0 to 1."""
        return self.busy / self.seconds

    @property
    def exposed(self) -> float:
        """Seconds of communication that no compute hides."""
        return self.communication - self.overlap

    @property
    def overlap_share(self) -> float:
        """Overlap over communication, 0 without any communication."""
        return self.overlap / self.communication if self.communication else 0.0

    @property
    def launch_bound(self) -> bool:
        """Whether the median kernel is shorter than the median call that launches it."""
        return self.kernels > 0 and self.kernel < self.launch

    @property
    def verdict(self) -> str:
        """`host-bound` below 70 % busy: mend the host first, kernels hardly matter. Else `busy`.

        `unknown` where work was launched and none recorded: the device may have been busy all the time.
        """
        if self.launches and not self.on_device:
            return UNKNOWN
        return HOST_BOUND if self.busy_share < BUSY_ENOUGH else BUSY

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """What the verdict rests on."""
        who = "device" if self.on_device else "operators"
        found = [Evidence(f"{who} busy", 100 * self.busy_share, "%")]
        if self.idle > 0:
            found.append(Evidence("idle time that waits for the host", 100 * self.host_wait / self.idle, "%"))
        if self.kernels:
            short = 100 * self.short_kernels / self.kernels
            found += [
                Evidence("kernels shorter than their launch", short, "%"),
                Evidence("median kernel", self.kernel, "s"),
                Evidence("median launch", self.launch, "s"),
                Evidence("median wait from launch to start", self.queue, "s"),
            ]
        if self.communication:
            found.append(Evidence("communication hidden by compute", 100 * self.overlap_share, "%"))
        return tuple(found)


def breakdown(trace: "Trace", window: tuple[float, float] | None = None) -> Breakdown:
    """Break the time of a trace down.

    window: (start, end) in seconds after the first interval of the trace; without one, from the first
    marked step to the end of the last one and of the device's work, or all of the trace where no step is
    marked. Raises `BreakdownError` for a window of no length, and for a trace with neither kernels nor
    operators.
    """
    columns = trace.columns
    on_device = len(columns.device_work) > 0
    work = columns.device_work if on_device else _host_work(columns)
    origin = int(columns.start.min(initial=np.iinfo(np.int64).max))
    span = _default_window(columns, work) if window is None else tuple(origin + round(1e9 * time) for time in window)
    if not len(work) or span[0] >= span[1]:
        raise BreakdownError(
            f"nothing runs in a window of {max(0, span[1] - span[0])} ns",
            mend="choose a window within the trace, and see what helpers.profiling.health says of it",
        )
    compute, communication, copies = (cover(part.start, part.end).within(span) for part in _parts(columns, work))
    busy = compute | communication | copies
    waits = _launched(columns, work) if on_device else work.start
    kernels = columns.kernels.take(_inside(columns.kernels, span))
    return Breakdown(
        rank=trace.rank,
        on_device=on_device,
        start=(span[0] - origin) / 1e9,
        seconds=(span[1] - span[0]) / 1e9,
        busy=busy.length / 1e9,
        compute=compute.length / 1e9,
        communication=communication.length / 1e9,
        copies=copies.length / 1e9,
        overlap=communication.shared(compute) / 1e9,
        host_wait=_host_wait(busy.gaps(span), work, waits) / 1e9,
        launches=int(columns.launches.starts_work.sum()),
        kernels=len(kernels),
        places=_places(work, waits, span, on_device),
        **_launch_times(columns, kernels),
    )


def device_window(trace: "Trace") -> tuple[float, float]:
    """From the start of the first kernel or copy to the end of the last one, as `breakdown` takes a window.

    HolisticTraceAnalysis breaks this window down; it leaves out what the host does before the first
    kernel. Raises `BreakdownError` for a trace without either.
    """
    work = trace.columns.device_work
    if not len(work):
        raise BreakdownError("the trace holds no kernel and no copy", mend="break down the host's operators instead")
    origin = trace.columns.start.min()
    return float(work.start.min() - origin) / 1e9, float(work.end.max() - origin) / 1e9


def _host_work(columns: Columns) -> Intervals:
    compute = columns.of("cpu_op") & columns.name.where(lambda name: name.startswith("aten::"))
    gloo = columns.of("user_annotation") & columns.name.where(is_collective)
    return columns.intervals(compute | gloo)


def _parts(columns: Columns, work: Intervals) -> tuple[Intervals, Intervals, Intervals]:
    """Compute, communication and copies."""
    copies = columns.of(*COPIES)[work.row]
    collective = work.name.where(is_collective) & ~copies
    return work.take(~copies & ~collective), work.take(collective), work.take(copies)


def _default_window(columns: Columns, work: Intervals) -> tuple[int, int]:
    annotations = columns.annotations
    steps = annotations.take(annotations.is_step)
    host = steps if len(steps) else columns.intervals(~columns.of("Trace", "python_function"))
    if not len(host):
        return (0, 0)
    return int(host.start.min()), int(max(host.end.max(), work.end.max(initial=host.end.max())))


def _inside(intervals: Intervals, span: tuple[int, int]) -> np.ndarray:
    return (intervals.start >= span[0]) & (intervals.start < span[1])


def _launched(columns: Columns, work: Intervals) -> np.ndarray:
    """When the call that put each on the device began; long ago where that was not recorded."""
    launch, _ = match(columns.correlation[work.row], columns.launches.correlation)
    found = np.full(len(work), np.iinfo(np.int64).min)
    found[launch != NONE] = columns.launches.start[launch[launch != NONE]]
    return found


def _host_wait(gaps: Spans, work: Intervals, launched: np.ndarray) -> int:
    """Nanoseconds of the gaps that end with work launched within them, or with no work at all."""
    order = np.argsort(work.start, kind="stable")
    starts = work.start[order]
    place = np.searchsorted(starts, gaps.end, side="left")
    next_work = np.minimum(place, len(order) - 1)
    ends_in_work = (place < len(order)) & (starts[next_work] == gaps.end)
    waits = ~ends_in_work | (launched[order[next_work]] > gaps.start)
    return int((gaps.end - gaps.start)[waits].sum())


def _places(work: Intervals, launched: np.ndarray, span: tuple[int, int], on_device: bool) -> tuple[Place, ...]:
    """The streams or threads, the busiest first."""
    found = []
    for code in np.unique(work.thread.codes).tolist():
        here = work.thread.codes == code
        mine = work.take(here)
        spans = cover(mine.start, mine.end).within(span)
        if not len(spans):
            continue
        gaps = spans.gaps((int(spans.start[0]), int(spans.end[-1])))
        process, number = work.thread.values[code]
        name = f"device {process} stream {number}" if on_device else f"process {process} thread {number}"
        count = int(_inside(mine, span).sum())
        wait = _host_wait(gaps, mine, launched[here])
        found.append(Place(name, count, spans.length / 1e9, gaps.length / 1e9, wait / 1e9))
    return tuple(sorted(found, key=lambda place: -place.busy))


def _launch_times(columns: Columns, kernels: Kernels) -> dict[str, float]:
    """Medians in seconds, 0 without kernels; and how many kernels are shorter than their launch."""
    launch, _ = match(kernels.correlation, columns.launches.correlation)
    known = kernels.take(launch != NONE)
    calls = columns.launches.take(launch[launch != NONE])
    return {
        "short_kernels": int((known.duration < calls.duration).sum()),
        "kernel": _median(kernels.duration),
        "launch": _median(calls.duration),
        "queue": _median(known.start - calls.start),
    }


def _median(nanoseconds: np.ndarray) -> float:
    return float(np.median(nanoseconds)) / 1e9 if len(nanoseconds) else 0.0
