"""Pictures of how a kernel's workgroups lie on its data."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
