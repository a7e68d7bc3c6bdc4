"""Timing with warm-up and a spread, because one number hides how much it varies."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from helpers.measure.quantity import Quantity, measured


@dataclass(frozen=True)
class Samples:
    """Durations of repeated calls, in seconds, in the order they were taken."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> Quantity:
        """The median duration, `s`, measured."""
        return measured(statistics.median(self.seconds), "s")

    @property
    def best(self) -> Quantity:
        """The shortest duration, `s`, measured: the run that was disturbed least."""
        return measured(min(self.seconds), "s")

    @property
    def spread(self) -> float:
        """Interquartile range divided by the median, dimensionless; 0 for fewer than two samples."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / statistics.median(self.seconds)


def time_call(
    call: Callable[[], object],
    *,
    repeats: int = 10,
    warmup: int = 2,
    synchronize: Callable[[], object] = lambda: None,
) -> Samples:
    """Time `call()` `repeats` times after `warmup` untimed calls.

    synchronize: waits for the device before each clock reading (`torch.cuda.synchronize`,
        `torch.mps.synchronize`); without it an asynchronous device is timed at launch.
    Raises `ValueError` when `repeats` is below 1.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, not {repeats}")
    for _ in range(warmup):
        call()
    seconds = []
    for _ in range(repeats):
        synchronize()
        start = time.perf_counter()
        call()
        synchronize()
        seconds.append(time.perf_counter() - start)
    return Samples(tuple(seconds))
