"""What moving bytes costs in time: α seconds a message and β bytes a second, fitted on this machine."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from helpers.errors import CourseError
from helpers.measure import Quantity, measured
from helpers.training.collectives import KINDS, Collective


class CostError(CourseError):
    """Samples that no line can be drawn through, or a collective that is not timed."""


@dataclass(frozen=True)
class Fit:
    """t = α + bytes / β.

    alpha: seconds of a collective that moves nothing. beta: whole-tensor bytes per second. worst:
    the largest relative distance of a sample from the line.
    """

    alpha: float
    beta: float
    worst: float

    def seconds(self, size: float) -> float:
        """The time of a collective on a tensor of `size` bytes."""
        return self.alpha + size / self.beta

    def quantities(self) -> dict[str, Quantity]:
        """α and β as measured numbers."""
        return {"α": measured(self.alpha, "s"), "β": measured(self.beta, "B/s")}


def fit(sizes: Sequence[float], seconds: Sequence[float]) -> Fit:
    """The line of least *relative* squares through (bytes, seconds): small messages count as much as large.

    α is never below zero. Raises `CostError` for fewer than two distinct sizes, a time that is not
    positive, or times that do not grow with the size.
    """
    if len(set(sizes)) < 2 or min(seconds) <= 0:
        raise CostError("a line needs two sizes, and times above zero", mend="measure more sizes")
    weights = [1 / t**2 for t in seconds]
    total = sum(weights)
    mean_x = sum(w * x for w, x in zip(weights, sizes)) / total
    mean_y = sum(w * y for w, y in zip(weights, seconds)) / total
    spread = sum(w * (x - mean_x) ** 2 for w, x in zip(weights, sizes))
    slope = sum(w * (x - mean_x) * (y - mean_y) for w, x, y in zip(weights, sizes, seconds)) / spread
    if slope <= 0:
        raise CostError("the times do not grow with the size", mend="measure larger sizes, or more often")
    alpha = mean_y - slope * mean_x
    if alpha < 0:  # the best line through the origin
        alpha, slope = 0.0, total_ratio(weights, sizes, seconds)
    worst = max(abs(alpha + slope * x - y) / y for x, y in zip(sizes, seconds))
    return Fit(alpha, 1 / slope, worst)


def total_ratio(weights: Sequence[float], sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Seconds a byte of the weighted line through the origin."""
    above = sum(w * x * y for w, x, y in zip(weights, sizes, seconds))
    return above / sum(w * x * x for w, x in zip(weights, sizes))


def time_collective(kind: str, sizes: Sequence[int], repeats: int = 7, device: str = "cpu") -> list[float]:
    """Median seconds of a collective on whole tensors of `sizes` bytes. Every rank must call it.

    kind: `all_gather`, `reduce_scatter` or `all_reduce`. A size is rounded down to whole fp32 elements
    on every rank. Raises `CostError` for another kind.
    """
    if kind not in KINDS:
        raise CostError(f"there is no collective {kind!r}", mend=f"use one of {', '.join(KINDS)}")
    return [_median(_call(kind, size, device), repeats, device) for size in sizes]


def _call(kind: str, size: int, device: str) -> Callable[[], object]:
    world = dist.get_world_size()
    part = torch.ones(max(1, size // 4 // world), device=device)
    whole = torch.ones(len(part) * world, device=device)
    return {
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
        "all_reduce": lambda: dist.all_reduce(whole),
    }[kind]


def _median(call: Callable[[], object], repeats: int, device: str) -> float:
    call()
    seconds = []
    for _ in range(repeats):
        dist.barrier()
        start = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def predicted_seconds(collectives: Sequence[Collective], fits: dict[str, Fit]) -> float:
    """The time of a step's collectives one after another, from the fit of each kind."""
    return sum(entry.count * fits[entry.kind].alpha + entry.bytes / fits[entry.kind].beta for entry in collectives)
