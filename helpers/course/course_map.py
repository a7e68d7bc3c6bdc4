"""The picture of the course: one model's life in three tracks."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STATIONS = (
    ("Training", "four ranks learn\nPython's own sources", "What does each rank hold?"),
    ("Profiling", "a trace and a roofline\nexplain the step", "What limits each operator?"),
    ("Edge", "shaders run its kernels\non any Vulkan device", "Is the answer the same?"),
)
HANDED_OVER = ("traces of\neach rank", "roofs\nto reach")
HATCHES = ("///", "...", "xx")
COLORS = ("#dfe8f3", "#fbeed5", "#e3f1e0")
ALT = (
    "Map of the course: one small language model goes from Training, where four ranks learn Python's sources, over "
    "Profiling, where a trace and a roofline explain the step, to Edge, where shaders run its kernels on any Vulkan "
    "device. Traces and measured roofs are handed from track to track."
)


def course_map() -> "Figure":
    """Three stations with what each does and the question it answers, and what one hands the next."""
    from matplotlib import pyplot
    from matplotlib.patches import FancyBboxPatch

    figure, axes = pyplot.subplots(figsize=(9.5, 2.6))
    axes.set(xlim=(0, 13), ylim=(0, 3.2))
    axes.axis("off")
    for place, ((name, what, question), hatch, color) in enumerate(zip(STATIONS, HATCHES, COLORS)):
        left = 4.65 * place
        box = FancyBboxPatch(
            (left + 0.1, 0.3), 3.2, 2.5, boxstyle="round,pad=0.08", facecolor=color, edgecolor="black"
        )
        strip = FancyBboxPatch(
            (left + 0.1, 2.72),
            3.2,
            0.08,
            boxstyle="round,pad=0.08",
            facecolor="white",
            hatch=hatch,
            edgecolor="black",
        )
        axes.add_patch(box)
        axes.add_patch(strip)
        axes.text(left + 1.7, 2.2, name, ha="center", fontsize=13, weight="bold")
        axes.text(left + 1.7, 1.3, what, ha="center", fontsize=9.5, linespacing=1.3)
        axes.text(left + 1.7, 0.55, question, ha="center", fontsize=9.5, style="italic")
    for place, words in enumerate(HANDED_OVER):
        left = 4.65 * place + 3.45
        axes.annotate(
            "",
            (left + 1.15, 1.35),
            (left, 1.35),
            arrowprops={"arrowstyle": "-|>", "linewidth": 1.6, "color": "black"},
        )
        axes.text(left + 0.55, 1.55, words, ha="center", fontsize=8.5)
    figure.tight_layout(pad=0.2)
    return figure
