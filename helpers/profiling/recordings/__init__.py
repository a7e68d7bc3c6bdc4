"""Distilled recordings: figures of runs on machines that the learner does not have, each with its source."""

import json
from dataclasses import dataclass
from pathlib import Path

from helpers.errors import CourseError
from helpers.profiling.counters.distil import load
from helpers.profiling.counters.record import KernelRecord
from helpers.profiling.distilled import restore_trace
from helpers.profiling.timeline import LANES, Lanes
from helpers.profiling.trace import Trace

FOLDER = Path(__file__).parent
KERNELS = FOLDER / "kernels"
TRACES = FOLDER / "traces"


class RecordingError(CourseError):
    """A recording that is not shipped, or not whole."""


@dataclass(frozen=True)
class RecordedTimeline:
    """Lanes of some ranks of a run on another machine, in seconds from the start of the step.

    what: the run in a sentence. device: what it ran on, as far as the file says. date, source and
    licence: of the trace it was distilled from. seconds: of the step.
    """

    what: str
    device: str
    date: str
    source: str
    licence: str
    seconds: float
    ranks: tuple[Lanes, ...]


@dataclass(frozen=True)
class RecordedTrace:
    """A torch trace of a run on another machine, read as if by `read_trace`.

    what: the run in a sentence. device, date and tool: for the stamp of its numbers. source and licence: of
    the file it was distilled from. doubts: what `health` said of that whole file, whose Python stacks were
    left out since. trace: its times count from its first interval.
    """

    what: str
    device: str
    date: str
    tool: str
    source: str
    licence: str
    doubts: tuple[str, ...]
    trace: Trace

    @property
    def stamp(self) -> dict[str, str]:
        """What `recorded(value, unit, **stamp)` needs."""
        return {"device": self.device, "date": self.date, "tool": self.tool}


def recorded_trace(name: str) -> RecordedTrace:
    """The trace `traces/NAME.json` of this folder. Raises `RecordingError` when it is absent or not whole."""
    path = TRACES / f"{name}.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        trace, doubts = restore_trace(content.pop("trace")), tuple(content.pop("doubts"))
        return RecordedTrace(trace=trace, doubts=doubts, **content)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        there = ", ".join(sorted(path.stem for path in TRACES.glob("*.json")))
        raise RecordingError(
            f"{name!r} cannot be read: {type(error).__name__}", where=str(path), mend=f"the recordings are {there}"
        ) from None


def recorded_timeline(name: str) -> RecordedTimeline:
    """The timeline `NAME.json` of this folder. Raises `RecordingError` when it is absent or not whole."""
    path = FOLDER / f"{name}.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        ranks = tuple(
            Lanes(entry["rank"], {lane: tuple(map(tuple, entry["lanes"].get(lane, ()))) for lane in LANES})
            for entry in content.pop("ranks")
        )
        return RecordedTimeline(ranks=ranks, **content)
    except (OSError, ValueError, KeyError, TypeError) as error:
        there = ", ".join(sorted(path.stem for path in FOLDER.glob("*.json")))
        raise RecordingError(
            f"{name!r} cannot be read: {type(error).__name__}", where=str(path), mend=f"the recordings are {there}"
        ) from None


def recorded_kernels() -> dict[str, KernelRecord]:
    """The kernels that the course ships, by name as `a40_stream_store`, distilled from published reports.

    Each says its device, tool, date where it is known, and origin with the licence. No wheel and no GPU is
    needed. One of them failed on purpose: its counters are NaN. Raises `RecordingError` when the folder is empty.
    """
    found = {path.stem: load(path) for path in sorted(KERNELS.glob("*.json"))}
    if not found:
        raise RecordingError("no recorded kernel is here", where=str(KERNELS), mend="install the course again")
    return found


def recorded_kernel(name: str) -> KernelRecord:
    """One of `recorded_kernels`. Raises `RecordingError` that lists the names for one that is not shipped."""
    found = recorded_kernels()
    if name not in found:
        raise RecordingError(f"no kernel {name!r} is recorded", mend=f"the recordings are {', '.join(found)}")
    return found[name]
