"""What a named part of a model costs in forward *and* in backward.

A range that a program names is open while the forward of that part runs. Its backward runs later, on a GPU on
another thread, and lies in no such range. torch numbers the nodes of its graph as forward makes them, and the
operator that runs a node in backward carries the same number: by these numbers the backward is found.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from helpers.errors import CourseError
from helpers.profiling.columns import NONE, Operators
from helpers.profiling.joins import join

if TYPE_CHECKING:
    from helpers.profiling.trace import Trace

ENGINE = "autograd::engine::evaluate_function"


class RegionError(CourseError):
    """A name that no range of the trace has."""


@dataclass(frozen=True)
class Region:
    """One named part in a trace, all of its calls together.

    forward and backward: seconds of the kernels that its operators launched, or of the operators themselves where no
    kernel was recorded. nodes: of the graph that backward ran for it.
    """

    name: str
    calls: int
    forward: float
    backward: float
    nodes: int


def region_times(trace: "Trace", name: str) -> Region:
    """Forward and backward of the ranges called `name`. Raises `RegionError` when there is none."""
    columns, operators = trace.columns, trace.columns.operators
    ranges = columns.annotations.take(columns.annotations.name.where(lambda one: one == name))
    if not len(ranges):
        there = ", ".join(sorted(set(columns.annotations.name.tolist()))) or "none"
        raise RegionError(f"no range is called {name!r}", mend=f"the trace has {there}")
    taken = join(trace).total_time if len(columns.kernels) else operators.duration
    is_backward = operators.name.where(lambda one: one.startswith(ENGINE))
    forward = backward = nodes = 0
    for start, end, thread in zip(ranges.start.tolist(), ranges.end.tolist(), ranges.thread.tolist()):
        here = operators.thread.where(lambda one, thread=thread: one == thread)
        inside = here & (operators.start >= start) & (operators.start < end)
        outermost = inside & ~((operators.parents != NONE) & inside[operators.parents])
        first, after = _nodes(operators, here, start, end)
        mine = is_backward & (operators.sequence >= first) & (operators.sequence < after)
        forward, backward = forward + int(taken[outermost].sum()), backward + int(taken[mine].sum())
        nodes += int(mine.sum())
    return Region(name, len(ranges), forward / 1e9, backward / 1e9, nodes)


def _nodes(operators: Operators, here: np.ndarray, start: int, end: int) -> tuple[int, int]:
    """The numbers of the nodes that a range made: from the first, up to that of the first operator after it.

    An operator carries the number that the next node will get, whether or not it makes one.
    """
    forward = here & (operators.sequence != NONE) & operators.name.where(lambda one: "Backward" not in one)
    numbers, starts = operators.sequence[forward], operators.start[forward]
    since, later = numbers[(starts >= start) & (starts < end)], numbers[starts >= end]
    most = int(np.iinfo(np.int64).max)
    return int(since.min(initial=most)), int(later.min(initial=most))
