"""Figures of the training track; a notebook shows them with `show_fig` and words of its own."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from helpers.training.ledger import CATEGORIES, PHASES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from helpers.training.tracker import Counts


def loss_figure(losses: Sequence[float], vocab: int = 256) -> "Figure":
    """Loss in nats per token over steps, its ends named, against a uniform guess of ln(vocab)."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.4), layout="constrained")
    steps = range(1, len(losses) + 1)
    axes.plot(steps, losses, color="#1f5fa8", label="training loss")
    axes.axhline(math.log(vocab), color="#555555", linestyle="--", label=f"a uniform guess: ln {vocab}")
    ends = ((1, losses[0], (8, 6), "left"), (len(losses), losses[-1], (0, 12), "right"))
    for step, loss, offset, side in ends:
        axes.plot(step, loss, "o", color="#1f5fa8")
        axes.annotate(f"{loss:.2f}", (step, loss), offset, textcoords="offset points", ha=side)
    axes.set(xlabel="step", ylabel="nats per byte", ylim=(0, math.log(vocab) + 1))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower left")
    return figure


def rows_figure(counts: Sequence[Sequence[int]], titles: Sequence[str]) -> "Figure":
    """Which rank keeps which row: one column of cells a split, hatched by rank.

    counts: per split, the rows of each rank in rank order. titles: a heading for each split.
    """
    from matplotlib import pyplot

    colours, hatches = ("#cfe2f3", "#f9cb9c", "#b6d7a8", "#d5a6bd"), ("", "//", "..", "xx")
    figure, all_axes = pyplot.subplots(1, len(counts), figsize=(2.3 * len(counts), 3.0), layout="constrained")
    tallest = max(map(sum, counts))
    for axes, split, title in zip(all_axes, counts, titles):
        row = 0
        for rank, rows in enumerate(split):
            style = {"facecolor": colours[rank % 4], "hatch": hatches[rank % 4], "edgecolor": "#333333"}
            for _ in range(rows):
                axes.add_patch(pyplot.Rectangle((0, row), 1, 0.92, **style))
                label = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
                axes.text(0.5, row + 0.46, f"rank {rank}", ha="center", va="center", fontsize=8, bbox=label)
                row += 1
        axes.set(xlim=(-0.05, 1.05), ylim=(tallest, -0.1), xticks=[], yticks=[i + 0.46 for i in range(row)])
        axes.set_yticklabels(range(row))
        axes.set_title(title, fontsize=10)
        axes.spines[:].set_visible(False)
    all_axes[0].set_ylabel("row of the whole parameter")
    return figure


def ledger_figure(counts: "Counts") -> "Figure":
    """One rank's bytes at each moment of a step, stacked by what they are for.

    counts: bytes by (phase, category), as `track_step` returns; totals are left out.
    """
    from matplotlib import pyplot

    phases = [phase for phase in PHASES if any(key[0] == phase for key in counts)]
    kinds = [kind for kind in CATEGORIES[:-1] if any(key[1] == kind for key in counts)]
    figure, axes = pyplot.subplots(figsize=(8.5, 3.8), layout="constrained")
    bottoms = [0.0] * len(phases)
    for number, kind in enumerate(kinds):
        heights = [counts.get((phase, kind), 0) / 2**20 for phase in phases]
        color = pyplot.get_cmap("tab10")(number)
        hatch = ("", "//", "..", "xx", "\\\\")[number % 5]
        axes.bar(phases, heights, 0.6, bottoms, label=kind, color=color, hatch=hatch, edgecolor="white")
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights)]
    for place, total in enumerate(bottoms):
        axes.annotate(f"{total:.1f}", (place, total), (0, 4), textcoords="offset points", ha="center")
    axes.set_ylabel("MiB on one rank")
    axes.margins(y=0.12)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    return figure


def curves_figure(curves: "dict[str, Sequence[float]]", vocab: int = 256) -> "Figure":
    """Losses in nats per token of several runs over their steps, told apart by line style and marker too."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.4), layout="constrained")
    for number, (name, losses) in enumerate(curves.items()):
        style = {"linestyle": ("-", "--", ":", "-.")[number % 4], "marker": "os^D"[number % 4], "markersize": 4}
        axes.plot(range(1, len(losses) + 1), losses, label=name, **style)
    axes.axhline(math.log(vocab), color="#999999", linewidth=0.8)
    last = max(map(len, curves.values()))
    place = {"xytext": (0, 4), "textcoords": "offset points", "ha": "right", "fontsize": 8}
    axes.annotate(f"a uniform guess: ln {vocab}", (last, math.log(vocab)), **place)
    axes.set(xlabel="step", ylabel="nats per byte", ylim=(0, math.log(vocab) + 1))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower left")
    return figure


def bars_figure(charts: "dict[str, dict[str, float]]") -> "Figure":
    """Horizontal bars: a chart for each title side by side, names down the left, values at the ends."""
    from matplotlib import pyplot

    names = list(next(iter(charts.values())))
    size = (4.2 * len(charts) + 1, 0.36 * len(names) + 1.1)
    figure, all_axes = pyplot.subplots(1, len(charts), figsize=size, sharey=True, layout="constrained")
    for axes, (title, values), hatch in zip(all_axes, charts.items(), ("", "//", "..")):
        bars = axes.barh(names, [values[name] for name in names], color="#9ecae1", edgecolor="#333333", hatch=hatch)
        axes.bar_label(bars, fmt="%.1f", padding=3, fontsize=8)
        axes.set_title(title, fontsize=10)
        axes.margins(x=0.15)
        axes.grid(axis="x", alpha=0.3)
    all_axes[0].invert_yaxis()
    return figure
