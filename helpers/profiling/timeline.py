"""What ran when: lanes of one or several ranks, the overlap of communication and compute, a figure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from helpers.errors import CourseError
from helpers.profiling.columns import NONE, collective_kind, is_collective
from helpers.profiling.intervals import cover
from helpers.profiling.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Interval = tuple[float, float]
LANES = ("compute", "all-gather", "reduce-scatter", "all-reduce", "other communication")
LOOKS = {  # colour and hatch: the hatches tell the lanes apart in grey
    "compute": ("#4c78a8", ""),
    "all-gather": ("#f2a93b", "///"),
    "reduce-scatter": ("#b04a5a", "\\\\\\"),
    "all-reduce": ("#9d9d9d", "..."),
    "other communication": ("#6b9e5b", "xxx"),
}


class TimelineError(CourseError):
    """A timeline of nothing."""


@dataclass(frozen=True)
class Lanes:
    """When one rank did what. Each lane is a sorted tuple of disjoint (start, end) in seconds."""

    rank: int
    lanes: dict[str, tuple[Interval, ...]]

    @property
    def communication(self) -> tuple[Interval, ...]:
        """All lanes but compute together."""
        return union(i for name in LANES[1:] for i in self.lanes[name])

    @property
    def overlap(self) -> float:
        """|communication ∩ compute| / |communication|, 0 to 1; 0 when there was no communication."""
        communication = self.communication
        shared = length(intersection(communication, self.lanes["compute"]))
        return shared / length(communication) if communication else 0.0

    @property
    def exposed(self) -> float:
        """Seconds of communication during which this rank computed nothing: what a step waits for."""
        return length(self.communication) - length(intersection(self.communication, self.lanes["compute"]))

    def seconds(self, lane: str) -> float:
        """The length of a lane in seconds."""
        return length(self.lanes[lane])


def lanes_of(trace: Trace) -> Lanes:
    """Sort a trace's events into lanes.

    Compute is every ATen operator, or every kernel that is no collective where a GPU computed.
    Collectives are gloo's work on its own threads, or NCCL's kernels. gloo has no reduce-scatter of
    its own and runs an all-reduce instead: such a one counts as reduce-scatter when it lies within
    FSDP's reduction of gradients.
    """
    columns = trace.columns
    on_gpu = len(columns.kernels) > 0
    work = columns.intervals(columns.of("kernel") if on_gpu else columns.of("cpu_op", "user_annotation"))
    operator = columns.of("cpu_op")[work.row]
    collective = work.name.where(is_collective) & ~operator
    computing = ~collective if on_gpu else ~collective & work.name.where(lambda name: name.startswith("aten::"))
    lane = np.where(collective, work.name.map(lambda name: LANES.index(collective_kind(name)), int), NONE)
    lane[computing] = LANES.index("compute")
    reducing = columns.annotations.take(columns.annotations.name.where(_is_reduction))
    within = cover(reducing.start, reducing.end).touches(work.start, work.end)
    lane[(lane == LANES.index("all-reduce")) & within] = LANES.index("reduce-scatter")
    rows = {name: work.take(lane == code) for code, name in enumerate(LANES)}
    return Lanes(trace.rank, {name: cover(one.start, one.end).seconds() for name, one in rows.items()})


def _is_reduction(name: str) -> bool:
    return name.startswith("FSDP::") and "post_backward" in name


def union(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Sorted disjoint intervals that cover the same time."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif end > start:
            merged.append((start, end))
    return tuple(merged)


def intersection(one: Sequence[Interval], other: Sequence[Interval]) -> tuple[Interval, ...]:
    """The time that lies in both; each must be sorted and disjoint."""
    shared, i, j = [], 0, 0
    while i < len(one) and j < len(other):
        start, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if start < end:
            shared.append((start, end))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return tuple(shared)


def length(intervals: Iterable[Interval]) -> float:
    """The time that disjoint intervals cover."""
    return sum(end - start for start, end in intervals)


def timeline_figure(traces: Sequence[Trace], window: Interval | None = None) -> "Figure":
    """Lanes over time, a group of lanes a rank; traces of one machine share a clock.

    window: (start, end) in seconds after the first event; all of it without one.
    Raises `TimelineError` without a trace.
    """
    if not traces:
        raise TimelineError("there is no trace to draw", mend="capture one first")
    origin = min(trace.events[0].start for trace in traces)
    return lanes_figure([lanes_of(trace) for trace in traces], origin, window)


def lanes_figure(ranks: Sequence[Lanes], origin: float, window: Interval | None = None) -> "Figure":
    """Lanes over time since `origin`, in seconds of their clock; window as in `timeline_figure`."""
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    figure, axes = pyplot.subplots(figsize=(9.5, 0.75 + 0.95 * len(ranks)))
    ticks = []
    for row, lanes in enumerate(ranks):
        for place, name in enumerate(("compute", "communication")):
            y = -(row * 1.0 + place * 0.4)
            ticks.append((y, f"rank {lanes.rank} {name}"))
            _draw(axes, lanes, LANES[:1] if place == 0 else LANES[1:], y, origin)
    axes.set_yticks([y for y, _ in ticks], [label for _, label in ticks], fontsize=8)
    axes.set_xlabel("ms")
    if window:
        axes.set_xlim(1e3 * window[0], 1e3 * window[1])
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    there = [name for name in LANES if any(lanes.lanes[name] for lanes in ranks)]
    handles = [Patch(facecolor=LOOKS[n][0], hatch=LOOKS[n][1], edgecolor="white", label=n) for n in there]
    figure.legend(handles=handles, ncols=len(handles), loc="lower center", bbox_to_anchor=(0.5, 0.98), frameon=False)
    figure.tight_layout()
    return figure


def _draw(axes, lanes: Lanes, names: Sequence[str], y: float, origin: float) -> None:
    for name in names:
        color, hatch = LOOKS[name]
        bars = [(1e3 * (start - origin), 1e3 * (end - start)) for start, end in lanes.lanes[name]]
        axes.broken_barh(bars, (y - 0.17, 0.34), facecolor=color, hatch=hatch, edgecolor="white", linewidth=0.1)
