"""Pictures of how a kernel's workgroups lie on its data, and of what it reaches."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from helpers.measure import Quantity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = "osD^vPX*"


def tiles_figure(rows: int, columns: int, tile: int) -> "Figure":
    """The workgroups over a (rows, columns) result; what lies outside of the result is hatched."""
    from matplotlib import pyplot
    from matplotlib.patches import Rectangle

    down, across = -(-rows // tile), -(-columns // tile)
    figure, axes = pyplot.subplots(figsize=(4.6, 4.6 * down / across))
    for row in range(down):
        for column in range(across):
            corner = (column * tile, row * tile)
            axes.add_patch(Rectangle(corner, tile, tile, facecolor="white", edgecolor="gray", hatch="////"))
            used = (min(tile, columns - corner[0]), min(tile, rows - corner[1]))
            axes.add_patch(Rectangle(corner, *used, facecolor="#cfe0f1", edgecolor="none"))
            axes.add_patch(Rectangle(corner, tile, tile, fill=False, edgecolor="black", linewidth=1.2))
            axes.text(corner[0] + tile / 2, corner[1] + tile / 2, f"{column}, {row}", ha="center", va="center")
    axes.add_patch(Rectangle((0, 0), columns, rows, fill=False, edgecolor="black", linewidth=2.5))
    axes.set(xlim=(-1, across * tile + 1), ylim=(down * tile + 1, -1), xlabel="column of C", ylabel="row of C")
    axes.set_xticks([*range(0, across * tile + 1, tile)])
    axes.set_yticks([*range(0, down * tile + 1, tile)])
    axes.set_aspect("equal")
    figure.tight_layout()
    return figure


def ladder_figure(rungs: Mapping[str, tuple[float, Quantity]], peak: Quantity, bandwidth: Quantity) -> "Figure":
    """Each rung of a matmul ladder under the roofline of its device.

    rungs: name to (intensity in FLOP/B of what the kernel asks of buffers, rate in FLOP/s), from the
    bottom up. peak: FLOP/s. bandwidth: B/s. A rung may stand above the slope: caches answer what the
    buffers are asked for, and the slope counts as if they did not.
    """
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 4.2))
    ridge = peak.value / bandwidth.value
    intensities = [intensity for intensity, _ in rungs.values()]
    left, right = min([*intensities, ridge]) / 3, max([*intensities, ridge]) * 6
    roof = [left * bandwidth.value, peak.value, peak.value]
    axes.plot([left, ridge, right], roof, color="black", label="roofline")
    rates = [rate.value for _, rate in rungs.values()]
    axes.plot(intensities, rates, color="gray", linestyle=":", linewidth=1)
    for marker, (name, (intensity, rate)) in zip(MARKERS, rungs.items()):
        axes.plot(intensity, rate.value, marker, color="#1f5fa8", markersize=8, label=name)
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        axes.annotate(name, (intensity, rate.value), textcoords="offset points", xytext=(9, -4), bbox=box)
    axes.set(xscale="log", yscale="log", xlabel="FLOP for each byte asked of buffers", ylabel="FLOP/s")
    axes.set_xlim(left, right)
    axes.set_ylim(min(rates) / 3, peak.value * 2)
    axes.grid(True, which="major", alpha=0.3)
    figure.tight_layout()
    return figure
