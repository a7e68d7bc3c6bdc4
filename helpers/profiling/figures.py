"""Curves of the profiling lessons; a notebook shows them with `show_fig` and words of its own."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLES = (("-", "o"), ("--", "s"), (":", "^"), ("-.", "D"))


def call_cost_figure(sizes: Sequence[int], seconds: Sequence[float], floor: float, rate: float) -> "Figure":
    """Seconds of one call over the elements it works on, both axes logarithmic.

    floor: seconds that a call takes however small it is. rate: elements a second of a large one; both are drawn
    as lines.
    """
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.5, 3.8), layout="constrained")
    axes.loglog(sizes, [1e6 * second for second in seconds], "o", color="#1f5fa8", label="measured")
    axes.axhline(1e6 * floor, color="#555555", linestyle="--", label="price of a call")
    axes.loglog(sizes, [1e6 * size / rate for size in sizes], color="#b04a5a", linestyle=":", label="work alone")
    axes.set(xlabel="elements", ylabel="µs of one call", ylim=(1e6 * floor / 4, 2e6 * max(seconds)))
    axes.grid(which="major", alpha=0.3)
    axes.legend()
    return figure


def step_figure(loading: Sequence[float], steps: Mapping[str, Sequence[float]]) -> "Figure":
    """Seconds of a step over seconds that the host loads before it: a curve a name, told apart by line and marker."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.5, 3.6), layout="constrained")
    for (name, seconds), (line, marker) in zip(steps.items(), STYLES):
        style = {"linestyle": line, "marker": marker, "markersize": 4}
        axes.plot([1e3 * one for one in loading], [1e3 * one for one in seconds], label=name, **style)
    axes.set(xlabel="ms that the host loads before each step", ylabel="ms a step", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def memory_figure(seconds: Sequence[float], held: Sequence[int], marks: Mapping[str, float]) -> "Figure":
    """Bytes held over time as a stair. marks: names of moments, drawn as vertical lines."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8.5, 3.4), layout="constrained")
    axes.step([1e3 * one for one in seconds], [one / 2**20 for one in held], where="post", color="#1f5fa8", lw=1)
    axes.set(xlabel="ms", ylabel="MiB held", ylim=(0, None))
    top = axes.get_ylim()[1]
    for name, second in marks.items():
        axes.axvline(1e3 * second, color="#555555", linestyle="--", linewidth=0.8)
        place = {"xytext": (3, -10), "textcoords": "offset points", "fontsize": 8}
        axes.annotate(name, (1e3 * second, top), **place)
    axes.grid(alpha=0.3)
    return figure
