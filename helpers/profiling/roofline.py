"""The roofline: what a machine can reach at an arithmetic intensity, and where operators stand."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from helpers.errors import CourseError
from helpers.measure import measured
from helpers.profiling.trace import Event, Trace, device_seconds
from helpers.profiling.work import work_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from helpers.hardware.roofs import CacheRoofs, Roof

MARKERS = "osD^vP*X"
ON_LINE = {"va": "center", "fontsize": 8, "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.6}}
STYLES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 3)))
MEND = "measure it: helpers.hardware.roofs"


class RooflineError(CourseError):
    """A roof that is not a positive number or does not exist, or a point that has no place on a roofline."""


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
                raise RooflineError(f"the {name} roof is {value!r}", mend=MEND)

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
class Roofs:
    """All roofs of one machine: a hierarchical roofline.

    compute: FLOP/s by dtype. bandwidth: B/s by level, as `L1`, `L2`, `DRAM`. A kernel has one intensity a
    level, its FLOP over the bytes that this level moved. Source: Yang, Kurth, Williams, Hierarchical Roofline
    Analysis for GPUs, 2019.
    Raises `RooflineError` for no roof of a kind or one that is not a positive number.
    """

    compute: Mapping[str, float]
    bandwidth: Mapping[str, float]

    def __post_init__(self):
        if not self.compute or not self.bandwidth:
            raise RooflineError("a roofline needs a compute roof and a bandwidth roof", mend=MEND)
        for dtype, level in product(self.compute, self.bandwidth):
            Roofline(self.compute[dtype], self.bandwidth[level])

    def pair(self, dtype: str, level: str = "DRAM") -> Roofline:
        """The two roofs that bind a kernel of `dtype` at `level`; `RooflineError` for one that is not there."""
        for kind, name, roofs in (("compute", dtype, self.compute), ("bandwidth", level, self.bandwidth)):
            if name not in roofs:
                has = ", ".join(roofs)
                raise RooflineError(f"there is no {kind} roof {name!r}", mend=f"use one of {has}, or measure it")
        return Roofline(self.compute[dtype], self.bandwidth[level])


def measured_roofs(gemms: Sequence["Roof"], caches: "CacheRoofs") -> Roofs:
    """The roofs of this machine from `gemm_roofs` and `cache_roofs`."""
    return Roofs(
        {roof.dtype: roof.rate.value for roof in gemms},
        {level.name: level.roof.rate.value for level in caches.levels},
    )


@dataclass(frozen=True)
class Point:
    """One operator: intensity in FLOP/B, rate in FLOP/s, seconds that it took, calls.

    level: the level whose bytes the intensity counts, '' for those of memory. dtype: '' where unknown.
    """

    name: str
    intensity: float
    rate: float
    seconds: float
    calls: int
    level: str = ""
    dtype: str = ""

    def share_of(self, roofline: Roofline) -> float:
        """Rate over what the roofs allow at this intensity; above 1 means that something is off."""
        return self.rate / roofline.attainable(self.intensity)


def points_of(trace: Trace) -> tuple[Point, ...]:
    """The operators of a trace whose work is known, all calls of one together, the longest first.

    Rate is work over time: an operator's self time on a CPU, the time of the kernels that it
    launched on a GPU. Operators without a work model are left out: see `left_out`.
    """
    flop, moved, seconds, calls = defaultdict(int), defaultdict(int), defaultdict(float), defaultdict(int)
    dtypes = {}
    for event, taken in _timed(trace):
        work = work_of(event)
        if work is not None and work.flop and work.bytes:
            flop[event.name] += work.flop
            moved[event.name] += work.bytes
            seconds[event.name] += taken
            calls[event.name] += 1
            dtypes.setdefault(event.name, set()).update(filter(None, event.bytes_per_element))
    points = (
        Point(
            *(_short(name), flop[name] / moved[name], flop[name] / seconds[name], seconds[name], count),
            dtype=_dtype(dtypes[name]),
        )
        for name, count in calls.items()
    )
    return tuple(sorted(points, key=lambda point: -point.seconds))


def _dtype(sizes: set[int]) -> str:
    """A trace's sizes name a dtype only where one type has that size."""
    return {4: "fp32", 8: "fp64"}.get(min(sizes), "") if len(sizes) == 1 else ""


def left_out(trace: Trace) -> tuple[tuple[str, float], ...]:
    """(name, seconds) of the operators that `points_of` leaves out, the longest first."""
    seconds: dict[str, float] = defaultdict(float)
    for event, taken in _timed(trace):
        work = work_of(event)
        if work is None or not work.flop or not work.bytes:
            seconds[event.name] += taken
    return tuple(sorted(seconds.items(), key=lambda entry: -entry[1]))


def _timed(trace: Trace) -> list[tuple[Event, float]]:
    """The operators that took time themselves, on the device where kernels were recorded, and that time."""
    on_device = device_seconds(trace)
    taken = (
        (event, on_device.get(event.external_id, 0.0) if on_device else trace.self_times[index])
        for index, event in enumerate(trace.of("cpu_op"))
    )
    return [(event, seconds) for event, seconds in taken if seconds > 0]


def _short(name: str) -> str:
    """A label: matplotlib leaves out of a legend what begins with an underscore."""
    return name.removeprefix("aten::").replace("_for_cpu", "").lstrip("_").removeprefix("scaled_dot_product_")


def above_roof(points: Sequence[Point], roofs: Roofline | Roofs, slack: float = 1.05) -> tuple[str, ...]:
    """For each point above its roof by more than `slack`: what usually explains it.

    Over the compute roof the roof or the FLOP are wrong; over the bandwidth roof only, the bytes come from
    nearer than memory or are fewer than counted. With `Roofs`, the roofs of the point's dtype (the highest
    where it is unknown) and level (memory) bind, and the level whose roof does hold the point is named.
    """
    return tuple(
        f"{point.name} reaches {100 * share:.0f} % of its roof: {_causes(point, roofs)}"
        for point in points
        if (share := point.share_of(_binding(point, roofs))) > slack
    )


def _binding(point: Point, roofs: Roofline | Roofs) -> Roofline:
    if isinstance(roofs, Roofline):
        return roofs
    level = point.level or min(roofs.bandwidth, key=roofs.bandwidth.__getitem__)
    highest = max(roofs.compute, key=roofs.compute.__getitem__)
    return roofs.pair(point.dtype if point.dtype in roofs.compute else highest, level)


def _causes(point: Point, roofs: Roofline | Roofs) -> str:
    roof = _binding(point, roofs)
    if point.rate > roof.peak:
        return (
            "it computes faster than the compute roof, so the roof may be of another dtype, of a lower clock, or "
            "measured under other load or with fewer threads, or the work model counts FLOP that were skipped"
        )
    held = (
        []
        if isinstance(roofs, Roofline)
        else [name for name, rate in roofs.bandwidth.items() if rate * point.intensity >= point.rate]
    )
    nearest = f" (the roof of {min(held, key=roofs.bandwidth.__getitem__)} holds it)" if held else ""
    return (
        f"its data may come from a cache{nearest}, the roof may be measured too low (other load, fewer threads), "
        "or the work model may count bytes that nobody moved"
    )


def roofline_figure(roofs: Mapping[str, Roofline] | Roofs, points: Sequence[Point] = ()) -> "Figure":
    """Log–log roofline: one or more roofs, and points with a legend of marker and name.

    roofs: pairs of roofs by name, each drawn as one line; or `Roofs`, each bandwidth drawn as a diagonal and
    each dtype as a horizontal line, labelled where they are. Lines differ in dashes and points in shape, not
    in colour. Raises `RooflineError` without a roof, or for a point without FLOP.
    """
    if not roofs:
        raise RooflineError("there is no roof to draw", mend=MEND)
    for point in points:
        if not (0 < point.intensity < math.inf and 0 < point.rate < math.inf):
            raise RooflineError(
                f"{point.name} does {point.rate:g} FLOP/s at {point.intensity:g} FLOP/B: it has no place here",
                mend="compare what does no arithmetic with the bandwidth roof: bytes over seconds",
            )
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8.8, 4.6))
    if isinstance(roofs, Roofs):
        _draw_hierarchy(axes, roofs, points)
    else:
        _draw_pairs(axes, roofs, _intensities(points, list(roofs.values())))
    _draw_points(axes, points)
    axes.set(xlabel="arithmetic intensity, FLOP per byte", ylabel="FLOP/s")
    axes.grid(True, which="major", linewidth=0.3)
    if axes.get_legend_handles_labels()[0]:
        beside = (1.26 if isinstance(roofs, Roofs) else 1.01, 0.5)
        axes.legend(fontsize=8, loc="center left", bbox_to_anchor=beside, frameon=False, labelspacing=0.9)
    return figure


def _intensities(points: Sequence[Point], roofs: Sequence[Roofline]) -> tuple[float, float]:
    low = min([0.04, *(0.5 * point.intensity for point in points), *(0.2 * roof.ridge for roof in roofs)])
    return low, max([8 * roof.ridge for roof in roofs] + [3 * point.intensity for point in points])


def _draw_pairs(axes: "Axes", roofs: Mapping[str, Roofline], span: tuple[float, float]) -> None:
    import numpy as np

    x = np.geomspace(*span, 200)
    axes.set(xscale="log", yscale="log", xlim=span)
    for place, (name, roof) in enumerate(roofs.items()):
        label = f"{name}: ridge {roof.ridge:.1f} FLOP/B"
        look = {"linestyle": STYLES[place % len(STYLES)], "linewidth": 1.8, "color": "black"}
        axes.plot(x, [roof.attainable(i) for i in x], label=label, **look)


def _draw_hierarchy(axes: "Axes", roofs: Roofs, points: Sequence[Point]) -> None:
    """Diagonals up to the highest compute roof, horizontals from the fastest diagonal on."""
    top, fastest, slowest = max(roofs.compute.values()), *(f(roofs.bandwidth.values()) for f in (max, min))
    low, high = _intensities(points, [roofs.pair(*names) for names in product(roofs.compute, roofs.bandwidth)])
    floor = min([0.5 * slowest * low, *(0.5 * point.rate for point in points)])
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(floor, 2.5 * top))
    for place, (name, rate) in enumerate(_by_rate(roofs.bandwidth)):
        look = {"linestyle": STYLES[place % len(STYLES)], "linewidth": 1.6, "color": "black"}
        axes.plot((low, top / rate), (low * rate, top), **look)
        _along(axes, f"{name} {_unit(rate)}B/s", low * 1.4 * 4.0**place, rate)
    for place, (_, rate) in enumerate(_by_rate(roofs.compute)):
        look = {"linestyle": STYLES[place % len(STYLES)], "linewidth": 1.6, "color": "0.35"}
        axes.plot((rate / fastest, high), (rate, rate), **look)
    _beside(axes, {f"{name} {_unit(rate)}FLOP/s": rate for name, rate in roofs.compute.items()})


def _beside(axes: "Axes", heights: Mapping[str, float]) -> None:
    """Write each text right of the axes at its height, apart from the others, with a line to where it belongs."""
    above = math.inf
    for text, height in _by_rate(heights):
        at = axes.transAxes.inverted().transform(axes.transData.transform((1.0, height)))[1]
        above = min(at, above - 0.055)
        line = {"arrowstyle": "-", "linewidth": 0.6, "color": "0.35", "shrinkA": 0, "shrinkB": 0}
        place = {"xycoords": "axes fraction", "va": "center", "fontsize": 8}
        axes.annotate(text, (1.0, at), (1.03, above), arrowprops=line, **place)


def _by_rate(rates: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(rates.items(), key=lambda entry: -entry[1])


def _along(axes: "Axes", text: str, start: float, rate: float) -> None:
    """Write on a diagonal from intensity `start` on, turned as the line is on the page."""
    here, there = axes.transData.transform([(start, start * rate), (10 * start, 10 * start * rate)])
    angle = math.degrees(math.atan2(*(there - here)[::-1]))
    axes.text(start, start * rate, text, rotation=angle, rotation_mode="anchor", ha="left", **ON_LINE)


def _unit(rate: float) -> str:
    """Three digits and a prefix."""
    scale, prefix = next(
        step for step in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (0, "")) if rate >= step[0]
    )
    return f"{rate / (scale or 1):.3g} {prefix}"


def _draw_points(axes: "Axes", points: Sequence[Point]) -> None:
    """Each point with a marker of its own, lighter and smaller the less time it took."""
    for place, point in enumerate(points):
        shade = str(round(0.25 + 0.6 * place / max(1, len(points)), 2))
        level = f" ({point.level})" if point.level else ""
        axes.plot(
            point.intensity,
            point.rate,
            MARKERS[place % len(MARKERS)],
            color=shade,
            markersize=11 - 0.6 * min(place, 8),
            markeredgecolor="black",
            linestyle="none",
            label=f"{point.name}{level}, {1e3 * point.seconds:.1f} ms",
        )


def roofline_words(roofs: Mapping[str, Roofline] | Roofs, points: Sequence[Point] = ()) -> str:
    """Alternative text for `roofline_figure`: the roofs, and of each point its side of the ridge and its share."""
    if isinstance(roofs, Roofs):
        compute = ", ".join(f"{name} {_unit(rate)}FLOP/s" for name, rate in _by_rate(roofs.compute))
        memory = ", ".join(f"{name} {_unit(rate)}B/s" for name, rate in _by_rate(roofs.bandwidth))
        said = [f"Roofline with the compute roofs {compute} and the bandwidth roofs {memory}."]
    else:
        ridges = ", ".join(f"{name} with its ridge at {roof.ridge:.3g} FLOP/B" for name, roof in roofs.items())
        said = [f"Roofline with the roofs {ridges}."]
    for point in points:
        roof = _binding(point, roofs if isinstance(roofs, Roofs) else next(iter(roofs.values())))
        share = f"{100 * point.share_of(roof):.0f} % of its {roof.limit(point.intensity)} roof"
        said.append(f"{point.name} lies at {point.intensity:.3g} FLOP/B and reaches {share}.")
    return " ".join(said)


def cache_figure(caches: "CacheRoofs") -> "Figure":
    """Read rate over the size of the set that is read, with the plateau of each level and the sizes of the caches."""
    from matplotlib import pyplot
    from matplotlib.ticker import LogLocator

    figure, axes = pyplot.subplots(figsize=(8.0, 3.8))
    sizes, rates = zip(*((size, roof.rate.value / 1e9) for size, roof in caches.sweep))
    axes.plot(sizes, rates, "o-", color="0.35", markersize=4, linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set(yscale="log", xlabel="bytes that are read again and again", ylabel="GB/s")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    axes.yaxis.set_minor_formatter("{x:g}")
    for level in caches.levels:
        axes.axhline(level.roof.rate.value / 1e9, color="black", linewidth=0.8, linestyle=":")
        if level.size:
            axes.axvline(level.size, color="black", linewidth=0.8, linestyle="--")
            words = f"{level.name}: {measured(level.size, 'B').text}"
            axes.text(level.size, 1.01, words, transform=axes.get_xaxis_transform(), ha="center", fontsize=8)
    axes.figure.canvas.draw()
    rates = {level.name: level.roof.rate.value for level in caches.levels}
    _beside(axes, {f"{_unit(rate)}B/s from {name}": rate / 1e9 for name, rate in rates.items()})
    axes.tick_params(axis="y", which="both", labelsize=8)
    return figure
