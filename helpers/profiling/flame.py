"""A stretch of a trace as a picture: what the host did, call within call, and under it what the device did."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from helpers.errors import CourseError
from helpers.profiling.columns import NONE, Columns, Intervals

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from helpers.profiling.trace import Trace

LOOKS = {  # colour, hatch and the colour of the words: the hatches tell the kinds apart in grey
    "annotation": ("#e3e3e3", "", "#222222"),
    "operator": ("#4c78a8", "", "white"),
    "call of the runtime": ("#f2a93b", "////", "#222222"),
    "kernel or copy": ("#b04a5a", "....", "white"),
}
KINDS = {"user_annotation": "annotation", "cpu_op": "operator"}
WORK = ("kernel", "gpu_memcpy", "gpu_memset")
LETTERS = 140  # that fit across the figure


class FlameError(CourseError):
    """A window in which nothing happened."""


@dataclass(frozen=True)
class Row:
    """What is drawn on one height: (start and length in seconds after the window's start, name, kind) of each."""

    label: str
    bars: tuple[tuple[float, float, str, str], ...]


def flame_rows(trace: "Trace", window: tuple[float, float] | None = None, depth: int = 4) -> tuple[Row, ...]:
    """From top to bottom: for each thread of the host a row for each level of nesting, then the device's streams.

    window: (start, end) in seconds after the first interval of the trace; all of it without one. depth: levels of
    nesting. Raises `FlameError` for a window in which nothing happened.
    """
    columns = trace.columns
    start, end = _nanoseconds(columns, window)
    calls = columns.category.where(lambda category: category.endswith(("_runtime", "_driver")))
    host = columns.intervals(columns.of(*KINDS) | calls)
    work = columns.device_work
    rows = [*_rows(columns, host, _levels(host), start, end, depth)]
    rows += _rows(columns, work, np.zeros(len(work), int), start, end, depth)
    if not rows:
        raise FlameError("nothing happened in this window", where=str(window), mend="choose one within the trace")
    return tuple(rows)


def flame_figure(trace: "Trace", window: tuple[float, float] | None = None, depth: int = 4) -> "Figure":
    """`flame_rows` as a picture. Names stand where they fit."""
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    rows = flame_rows(trace, window, depth)
    start, end = _nanoseconds(trace.columns, window)
    seconds = (end - start) / 1e9
    scale, unit = (1e3, "ms") if seconds > 2e-3 else (1e6, "µs")
    figure, axes = pyplot.subplots(figsize=(9.5, 0.9 + 0.3 * len(rows)), layout="constrained")
    for place, row in enumerate(rows):
        _draw(axes, row, -place, scale, seconds)
    axes.set_yticks([-place for place in range(len(rows))], [row.label for row in rows], fontsize=8)
    axes.set(xlim=(0, scale * seconds), ylim=(0.6 - len(rows), 0.6), xlabel=unit)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    there = {kind for row in rows for *_, kind in row.bars}
    patches = [
        Patch(facecolor=color, hatch=hatch, edgecolor="white", label=kind)
        for kind, (color, hatch, _) in LOOKS.items()
        if kind in there
    ]
    figure.legend(handles=patches, ncols=len(patches), loc="outside upper center", frameon=False, fontsize=8)
    return figure


def _nanoseconds(columns: Columns, window: tuple[float, float] | None) -> tuple[int, int]:
    first = int(columns.start.min())
    if window is None:
        return first, int((columns.start + columns.duration).max())
    return first + round(window[0] * 1e9), first + round(window[1] * 1e9)


def _levels(intervals: Intervals) -> np.ndarray:
    """How many intervals lie around each on its thread (N,)."""
    level, above = np.zeros(len(intervals), int), intervals.parents
    while (inside := above != NONE).any():
        level[inside] += 1
        above = np.where(inside, intervals.parents[above], NONE)
    return level


def _rows(columns: Columns, found: Intervals, level: np.ndarray, start: int, end: int, depth: int):
    seen = (found.end > start) & (found.start < end) & (level < depth)
    for code in np.unique(found.thread.codes[seen]).tolist():
        here = seen & (found.thread.codes == code)
        process, number = found.thread.values[code]
        for height in np.unique(level[here]).tolist():
            bars = found.take(here & (level == height))
            kinds = [_kind(category) for category in columns.category[bars.row].tolist()]
            on_device = kinds[0] == "kernel or copy"
            label = f"device {process} stream {number}" if on_device else f"thread {number}" * (height == 0)
            left, width = ((bars.start - start) / 1e9).tolist(), (bars.duration / 1e9).tolist()
            yield Row(label, tuple(zip(left, width, bars.name.tolist(), kinds)))


def _kind(category: str) -> str:
    return KINDS.get(category, "kernel or copy" if category in WORK else "call of the runtime")


def _draw(axes: "Axes", row: Row, y: int, scale: float, seconds: float) -> None:
    for kind, (color, hatch, words) in LOOKS.items():
        mine = [bar for bar in row.bars if bar[3] == kind]
        style = {"facecolor": color, "hatch": hatch, "edgecolor": "white", "linewidth": 0.4}
        axes.broken_barh([(scale * left, scale * width) for left, width, *_ in mine], (y - 0.42, 0.84), **style)
        for left, width, name, _ in mine:
            from_, to = max(left, 0.0), min(left + width, seconds)
            text = _short(name)
            if len(text) + 1 < LETTERS * (to - from_) / seconds:
                place = {"ha": "center", "va": "center", "fontsize": 7, "color": words, "clip_on": True}
                place["bbox"] = {"facecolor": color, "edgecolor": "none", "pad": 0.6} if hatch else None
                axes.text(scale * (from_ + to) / 2, y, text, **place)


def _short(name: str) -> str:
    """Without namespaces and arguments: what stands at the end of `void at::native::…::kernel<…>(…)`."""
    plain = name.split("(")[0].split("<")[0] if name.startswith("void ") else name
    return plain.removeprefix("void ").rsplit("::", 1)[-1].removeprefix("## ").strip() or name[:20]
