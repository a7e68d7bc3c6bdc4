"""The figure of collectives' time over size: points, the fitted line, and where each of its parts rules."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from helpers.training.cost import Fit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOOKS = {"all_gather": ("#f2a93b", "o"), "reduce_scatter": ("#b04a5a", "s"), "all_reduce": ("#555555", "^")}


def cost_figure(sizes: Sequence[int], seconds: Mapping[str, Sequence[float]], fits: Mapping[str, Fit]) -> "Figure":
    """Measured points and the lines t = α + bytes / β, both axes logarithmic.

    sizes: bytes of the whole tensor. seconds: per collective, one time a size. fits: per collective.
    """
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.5, 4), layout="constrained")
    for kind, times in seconds.items():
        color, marker = LOOKS[kind]
        axes.loglog(sizes, [1e3 * time for time in times], marker, color=color, label=kind.replace("_", "-"))
        axes.loglog(sizes, [1e3 * fits[kind].seconds(size) for size in sizes], color=color, linewidth=1)
    axes.set(xlabel="bytes of the whole tensor", ylabel="milliseconds of one collective")
    axes.grid(which="both", alpha=0.25)
    axes.legend(title="points measured, lines fitted")
    return figure
