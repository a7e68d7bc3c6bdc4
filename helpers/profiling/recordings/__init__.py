"""Distilled recordings: figures of runs on machines that the learner does not have, each with its source."""

import json
from dataclasses import dataclass
from pathlib import Path

from helpers.errors import CourseError
from helpers.profiling.timeline import LANES, Lanes

FOLDER = Path(__file__).parent


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
