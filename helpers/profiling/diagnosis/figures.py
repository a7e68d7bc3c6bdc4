"""Pictures of counters: how busy each level is, and where kernels lie under the rule of thumb."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from helpers.profiling.diagnosis.context import DiagnosisError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = "osD^vP*Xhd"
SHADES = ("0.15", "0.85", "0.45", "0.65", "1.0")


def bars_figure(
    panels: Mapping[str, Sequence[tuple[str, float]]], label: str, marks: Sequence[float] = (), shown: int = 6
) -> "Figure":
    """One panel of horizontal bars for each name: (label of the bar, length), the first at the top.

    label: of the axis of lengths. marks: lengths with a dashed line in all panels. shown: bars of a panel at most.
    Raises `DiagnosisError` without a panel or for one without a bar.
    """
    if not panels or not all(panels.values()):
        raise DiagnosisError("there is nothing to draw", mend="hand in panels with at least one bar each")
    from matplotlib import pyplot

    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    deepest = min(shown, max(map(len, panels.values())))
    size = (4.9 * columns, (0.27 * deepest + 0.75) * rows + 0.3)
    figure, grid = pyplot.subplots(rows, columns, figsize=size, sharex=True, squeeze=False)
    for axes, (title, bars) in zip(grid.flat, panels.items()):
        _bars(axes, title, bars[:shown], marks)
    for axes in grid.flat[len(panels) :]:
        axes.axis("off")
    for axes in grid.flat[len(panels) - columns : len(panels)]:
        axes.set_xlabel(label, fontsize=9)
        axes.tick_params(labelbottom=True)
    figure.tight_layout()
    return figure


def _bars(axes: "Axes", title: str, bars: Sequence[tuple[str, float]], marks: Sequence[float]) -> None:
    names, lengths = zip(*bars)
    places = range(len(bars))
    shades = ["0.35", *["0.75"] * (len(bars) - 1)]
    axes.barh(places, lengths, color=shades, edgecolor="black", linewidth=0.6, height=0.7)
    axes.set_yticks(places, names, fontsize=8)
    axes.invert_yaxis()
    axes.set_title(title, fontsize=9)
    for place, length in zip(places, lengths):
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.4}
        axes.annotate(
            f"{length:.3g}", (length, place), (3, 0), textcoords="offset points", va="center", fontsize=7.5, bbox=box
        )
    for mark in marks:
        axes.axvline(mark, color="black", linewidth=0.9, linestyle="--")
    axes.set_xlim(0, max([1.12 * max(lengths), axes.get_xlim()[1], *(1.12 * mark for mark in marks)]))
    axes.spines[["top", "right"]].set_visible(False)


def rule_figure(groups: Mapping[str, Sequence[tuple[float, float]]]) -> "Figure":
    """The plane of SM % and DRAM % with the two regions in which the rule of thumb speaks, and kernels as points.

    groups: (SM %, DRAM %) of the kernels, by what limits them; each group has a marker of its own, and markers of
    several groups on one spot stand side by side. Raises `DiagnosisError` for a point outside of 0 to 100.
    """
    for name, points in groups.items():
        for point in points:
            if not all(0 <= percent <= 100 for percent in point):
                raise DiagnosisError(f"{name}: {point} is no pair of percentages", mend="leave failed kernels out")
    from matplotlib import pyplot
    from matplotlib.patches import Rectangle

    figure, axes = pyplot.subplots(figsize=(7.6, 4.6))
    axes.set(xlim=(-6, 106), ylim=(-6, 106), xlabel="SM, % of its peak", ylabel="DRAM, % of its peak")
    for corner, wide, high, text, hatch in (
        ((0, 75), 25, 25, "memory-bound", "///"),
        ((75, 0), 25, 50, "compute-bound", "..."),
    ):
        look = {"facecolor": "0.93", "edgecolor": "0.6", "hatch": hatch, "zorder": 0}
        axes.add_patch(Rectangle(corner, wide, high, label=f"the rule says {text}", **look))
    for place, (name, points) in enumerate(_apart(groups).items()):
        look = {"color": SHADES[place % len(SHADES)], "markeredgecolor": "black", "markersize": 8}
        axes.plot(*zip(*points), MARKERS[place % len(MARKERS)], linestyle="none", label=name, **look)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, labelspacing=0.8)
    axes.set_aspect("equal")
    figure.tight_layout()
    return figure


def _apart(groups: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, list[tuple[float, float]]]:
    """The points, with those of several groups on one spot side by side, so that each marker is seen."""
    spots: dict[tuple[int, int], list[str]] = {}
    for name, points in groups.items():
        for point in dict.fromkeys((round(x), round(y)) for x, y in points):
            spots.setdefault(point, []).append(name)
    moved: dict[str, list[tuple[float, float]]] = {}
    for name, points in groups.items():
        for x, y in points:
            there = spots[round(x), round(y)]
            at, across = there.index(name), min(3, len(there))
            column, row = at % 3 - (across - 1) / 2, at // 3 - (-(-len(there) // 3) - 1) / 2
            moved.setdefault(name, []).append((x + 4 * column, y - 4 * row))
    return moved
