"""A recorded step run again on paper: what a slower host or a wait for the device would have made of it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from helpers.errors import CourseError
from helpers.profiling.columns import NONE, Launches
from helpers.profiling.joins import match

if TYPE_CHECKING:
    from helpers.profiling.trace import Trace


class ReplayError(CourseError):
    """A trace without kernels whose launches are known, or a number of steps that cannot be run."""


@dataclass(frozen=True)
class Replay:
    """Steps that were replayed, in seconds. busy: of the device. waited: of the host, for the device."""

    steps: int
    seconds: float
    busy: float
    waited: float

    @property
    def busy_share(self) -> float:
        """0 to 1."""
        return self.busy / self.seconds

    @property
    def step(self) -> float:
        """Seconds of a step, on average."""
        return self.seconds / self.steps


@dataclass(frozen=True)
class _Step:
    """One step in nanoseconds: when each kernel is launched, its length, the host's length, the shortest way
    from a launch to the start of its kernel."""

    launched: np.ndarray
    duration: np.ndarray
    host: int
    latency: int


def replay(trace: "Trace", steps: int = 1, before: float = 0.0, read_every: int = 0) -> Replay:
    """Run the step of a trace `steps` times, on a host that launches and a device that works through one queue.

    The host takes as long between two launches as it was recorded to take, without its waits. A kernel starts
    when it has been launched, a recorded latency has passed, and the kernel before it is done. before: seconds
    that the host works before each step, as on a batch. read_every: after every so many steps the host waits
    until the device is idle, as `loss.item()` makes it; 0 means only at the end.
    Raises `ReplayError` for a trace without launches and kernels, and for no steps or negative times.
    """
    if steps < 1 or before < 0 or read_every < 0:
        what = f"steps must be at least 1, before and read_every at least 0, not {steps}, {before} and {read_every}"
        raise ReplayError(what, mend="replay one step or more")
    one = _recorded(trace)
    host = device = waited = 0
    for index in range(1, steps + 1):
        host += round(before * 1e9)
        for launched, duration in zip(one.launched.tolist(), one.duration.tolist()):
            device = max(device, host + launched + one.latency) + duration
        host += one.host
        if read_every and index % read_every == 0:
            waited += max(0, device - host)
            host = max(host, device)
    return Replay(steps, max(host, device) / 1e9, steps * int(one.duration.sum()) / 1e9, waited / 1e9)


def _recorded(trace: "Trace") -> _Step:
    columns = trace.columns
    work = columns.device_work
    launch, _ = match(columns.correlation[work.row], columns.launches.correlation)
    known = launch != NONE
    if not known.any():
        raise ReplayError(
            "no kernel whose launch was recorded",
            mend="record ProfilerActivity.CPU and CUDA, or read a recorded trace of a GPU",
        )
    calls = columns.launches.take(launch[known])
    latency = int(max(0, (work.start[known] - calls.start).min()))
    waiting = columns.launches.name.where(lambda name: "Synchronize" in name)
    waits, launches = columns.launches.take(waiting), columns.launches.take(~waiting)
    host = columns.intervals(columns.of("cpu_op", "user_annotation"))
    order = np.argsort(calls.start, kind="stable")
    first = int(min(launches.start.min(), host.start.min(initial=launches.start.min())))
    end = int(max(launches.end.max(), host.end.max(initial=0)))
    return _Step(
        launched=_without(waits, first, calls.start[order]),
        duration=work.duration[known][order],
        host=int(_without(waits, first, np.array([end]))[0]),
        latency=latency,
    )


def _without(waits: Launches, first: int, times: np.ndarray) -> np.ndarray:
    """Nanoseconds from `first` to each time, without the waits that ended before it."""
    ended = np.searchsorted(waits.end, times, side="right")
    return times - first - np.concatenate([[0], np.cumsum(waits.duration)])[ended]
