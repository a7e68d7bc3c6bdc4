"""The roofline: what a machine can reach at an arithmetic intensity, and where operators stand."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from helpers.errors import CourseError
from helpers.profiling.trace import Trace, device_seconds
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

    Rate is work over time: an operator's self time on a CPU, the time of the kernels that it
    launched on a GPU. Operators without a work model are left out: compare the seconds.
    """
    on_device = device_seconds(trace)
    flop, moved, seconds, calls = defaultdict(int), defaultdict(int), defaultdict(float), defaultdict(int)
    for index, event in enumerate(trace.of("cpu_op")):
        work = work_of(event)
        taken = on_device.get(event.external_id, 0.0) if on_device else trace.self_times[index]
        if work is not None and taken > 0:
            flop[event.name] += work.flop
            moved[event.name] += work.bytes
            seconds[event.name] += taken
            calls[event.name] += 1
    points = (
        Point(_short(name), flop[name] / moved[name], flop[name] / seconds[name], seconds[name], count)
        for name, count in calls.items()
    )
    return tuple(sorted(points, key=lambda point: -point.seconds))


def _short(name: str) -> str:
    """A label: matplotlib leaves out of a legend what begins with an underscore."""
    return name.removeprefix("aten::").removesuffix("_for_cpu").lstrip("_").removeprefix("scaled_dot_product_")


def above_roof(points: Sequence[Point], roofline: Roofline, slack: float = 1.05) -> tuple[str, ...]:
    """For each point above its roof by more than `slack`: what usually explains it."""
    return tuple(
        f"{point.name} reaches {100 * point.share_of(roofline):.0f} % of its roof: its data may come from a cache, "
        "the roof may be measured too low (other load, fewer threads), or the work model may count too much"
        for point in points
        if point.share_of(roofline) > slack
    )


def roofline_figure(roofs: dict[str, Roofline], points: Sequence[Point]) -> "Figure":
    """Log–log roofline: one or more roofs by name, and points with a legend of marker and name.

    Raises `RooflineError` without a roof.
    """
    if not roofs:
        raise RooflineError("there is no roof to draw", mend="measure one: helpers.hardware.roofs")
    import numpy as np
    from matplotlib import pyplot

    low = min([0.04, *(0.5 * point.intensity for point in points)])
    high = max([8 * roof.ridge for roof in roofs.values()] + [3 * point.intensity for point in points])
    figure, axes = pyplot.subplots(figsize=(8.8, 4.6))
    x = np.geomspace(low, high, 200)
    for (name, roof), style in zip(roofs.items(), ("-", "--", "-.", ":")):
        label = f"{name}: ridge {roof.ridge:.1f} FLOP/B"
        axes.plot(x, [roof.attainable(i) for i in x], style, color="black", linewidth=1.8, label=label)
    _draw_points(axes, points)
    axes.set(xscale="log", yscale="log", xlim=(low, high))
    axes.set(xlabel="arithmetic intensity, FLOP per byte", ylabel="FLOP/s")
    axes.grid(True, which="major", linewidth=0.3)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, labelspacing=0.9)
    figure.tight_layout()
    return figure


def _draw_points(axes, points: Sequence[Point]) -> None:
    """Each point with a marker of its own, lighter and smaller the less time it took."""
    for place, point in enumerate(points):
        shade = str(round(0.25 + 0.6 * place / max(1, len(points)), 2))
        axes.plot(
            point.intensity,
            point.rate,
            MARKERS[place % len(MARKERS)],
            color=shade,
            markersize=11 - 0.6 * min(place, 8),
            markeredgecolor="black",
            linestyle="none",
            label=f"{point.name}, {1e3 * point.seconds:.1f} ms",
        )
