"""The roofline: what a machine can reach at an arithmetic intensity, and where operators stand."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from helpers.errors import CourseError
from helpers.profiling.trace import Trace
from helpers.profiling.work import work_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = "osD^vP*X"


class RooflineError(CourseError):
    """A roof that is not a positive number."""


@dataclass(frozen=True)
class Roofline:
    """A compute roof (FLOP/s) and a bandwidth roof (B/s).

    Source of the model: Williams, Waterman, Patterson, Roofline, CACM 52(4), 2009.
    """

    peak: float
    bandwidth: float

    def __post_init__(self):
        for name, value in vars(self).items():
            if not 0 < value < float("inf"):
                raise RooflineError(f"the {name} roof is {value!r}", mend="measure it: helpers.hardware.roofs")

    @property
    def ridge(self) -> float:
        """The intensity, FLOP/B, at which the two roofs meet: below it bandwidth limits."""
        return self.peak / self.bandwidth

    def attainable(self, intensity: float) -> float:
        """FLOP/s that the roofs allow at `intensity`: min(peak, bandwidth · intensity)."""
        return min(self.peak, self.bandwidth * intensity)

    def limit(self, intensity: float) -> str:
        """`memory` below the ridge, `compute` from it on."""
        return "memory" if intensity < self.ridge else "compute"


@dataclass(frozen=True)
class Point:
    """One operator: intensity in FLOP/B, rate in FLOP/s, seconds that it took, calls."""

    name: str
    intensity: float
    rate: float
    seconds: float
    calls: int

    def share_of(self, roofline: Roofline) -> float:
        """Rate over what the roofs allow at this intensity; above 1 means that something is off."""
        return self.rate / roofline.attainable(self.intensity)


def points_of(trace: Trace) -> tuple[Point, ...]:
    """The operators of a trace whose work is known, all calls of one together, the longest first.

    Rate is work over self time. Operators without a model are left out: compare the seconds.
    """
    flop, moved, seconds, calls = defaultdict(int), defaultdict(int), defaultdict(float), defaultdict(int)
    for index, event in enumerate(trace.of("cpu_op")):
        work = work_of(event)
        if work is not None and event.duration > 0:
            flop[event.name] += work.flop
            moved[event.name] += work.bytes
            seconds[event.name] += trace.self_times[index]
            calls[event.name] += 1
    points = (
        Point(name.removeprefix("aten::"), flop[name] / moved[name], flop[name] / seconds[name], seconds[name], n)
        for name, n in calls.items()
        if seconds[name] > 0
    )
    return tuple(sorted(points, key=lambda point: -point.seconds))


def above_roof(points: Sequence[Point], roofline: Roofline, slack: float = 1.05) -> tuple[str, ...]:
    """For each point above its roof by more than `slack`: what usually explains it."""
    return tuple(
        f"{point.name} reaches {100 * point.share_of(roofline):.0f} % of its roof: its data may come from a cache, "
        "the roof may be measured too low (other load, fewer threads), or the work model may count too much"
        for point in points
        if point.share_of(roofline) > slack
    )


def roofline_figure(roofs: dict[str, Roofline], points: Sequence[Point]) -> "Figure":
    """Log–log roofline: one or more roofs by name, and points with a legend of marker and name."""
    import numpy as np
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8.5, 4.8))
    low = min([0.05, *(0.5 * point.intensity for point in points)])
    high = max([4 * max(roof.ridge for roof in roofs.values()), *(2 * point.intensity for point in points)])
    x = np.geomspace(low, high, 200)
    for (name, roof), style in zip(roofs.items(), ("-", "--", "-.", ":")):
        axes.plot(x, [roof.attainable(i) for i in x], style, color="black", linewidth=1.8, label=name)
        axes.axvline(roof.ridge, color="black", linewidth=0.6, linestyle=":")
        axes.annotate(f" ridge {roof.ridge:.1f}", (roof.ridge, axes.get_ylim()[0]), fontsize=8, va="bottom")
    colors = pyplot.get_cmap("viridis")(np.linspace(0.05, 0.85, max(1, len(points))))
    for point, marker, color in zip(points, MARKERS * (1 + len(points) // len(MARKERS)), colors):
        label = f"{point.name} ({1e3 * point.seconds:.1f} ms)"
        axes.plot(
            point.intensity, point.rate, marker, color=color, markersize=9, markeredgecolor="black", label=label
        )
    axes.set(xscale="log", yscale="log", xlim=(low, high))
    axes.set_xlabel("arithmetic intensity, FLOP per byte")
    axes.set_ylabel("FLOP/s")
    axes.grid(True, which="major", linewidth=0.3)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    figure.tight_layout()
    return figure
