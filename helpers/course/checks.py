"""Checks: an answer is examined, and one of five states comes back with what to do next."""

import html
import importlib
import random
import sys
import traceback
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import helpers
from helpers.course.exercise import Exercise, Finding, NotRun
from helpers.course.learner import record
from helpers.errors import CourseError

CHECK_KEY = "course_check"
TRACKS = ("training", "profiling", "edge")
NOT_THEIRS = (str(Path(helpers.__file__).parent), sys.prefix, sys.base_prefix, "<frozen")


class CheckError(CourseError):
    """An exercise that does not exist."""


class State(StrEnum):
    """The five answers of a check."""

    PASS = "PASS"
    NOT_YET = "NOT YET"
    NOT_STARTED = "NOT STARTED"
    ERROR = "ERROR"
    SKIPPED = "SKIPPED"


LOOKS = {  # symbol, and a border colour that is readable on light and dark pages
    State.PASS: ("✓", "#2e9e4f"),
    State.NOT_YET: ("✗", "#d9822b"),
    State.NOT_STARTED: ("○", "#8a8f98"),
    State.ERROR: ("!", "#d64545"),
    State.SKIPPED: ("→", "#4a90d9"),
}


@dataclass(frozen=True)
class Verdict:
    """What a check answers. True in a condition only when it passed.

    details: (word, text) pairs, in the order in which they are read.
    """

    exercise: Exercise
    state: State
    details: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return self.state is State.PASS

    def __str__(self) -> str:
        head = f"{LOOKS[self.state][0]} {self.state} · {self.exercise.id} · {self.exercise.title}"
        lines = [f"  {word:<9}{text.replace(chr(10), chr(10) + ' ' * 11)}" for word, text in self.details]
        return "\n".join([head, *lines])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        symbol, colour = LOOKS[self.state]
        title = html.escape(f"{self.exercise.id} · {self.exercise.title}")
        rows = "".join(
            f'<dt style="font-weight:600">{html.escape(word)}</dt>'
            f'<dd style="margin:0 0 .4em 1em;white-space:pre-wrap">{html.escape(text)}</dd>'
            for word, text in self.details
        )
        return (
            f'<div role="status" style="border-left:.4em solid {colour};padding:.3em .8em">'
            f"<strong>{symbol} {self.state}</strong> · {title}<dl>{rows}</dl></div>"
        )

    def _repr_mimebundle_(self, include=None, exclude=None) -> tuple[dict, dict]:
        """Text and HTML for people, and the state in the metadata for the runner."""
        data = {"text/plain": str(self), "text/html": self._repr_html_()}
        return data, {CHECK_KEY: {"id": self.exercise.id, "state": str(self.state)}}


def find_exercise(identifier: str) -> Exercise:
    """The exercise called `track.number`; `CheckError` lists those that exist."""
    track = str(identifier).partition(".")[0]
    known = {exercise.id: exercise for exercise in all_exercises((track,) if track in TRACKS else TRACKS)}
    if identifier not in known:
        raise CheckError(f"there is no exercise {identifier!r}", mend=f"the exercises are {', '.join(known)}")
    return known[identifier]


def all_exercises(tracks: tuple[str, ...] = TRACKS) -> tuple[Exercise, ...]:
    """Every exercise of `tracks`, in order."""
    modules = [importlib.import_module(f"helpers.course.exercises.{track}") for track in tracks]
    return tuple(exercise for module in modules for exercise in module.EXERCISES)


def check(identifier: str, answer: object, *, seed: int | None = None) -> Verdict:
    """Examine `answer` and return the verdict, which a notebook shows when it ends the cell.

    identifier: as `training.1`. answer: what the exercise asks for, usually a function. seed: of
    the inputs that are drawn; fresh each time unless given. An exception of the answer becomes
    ERROR; an interrupt goes through. Raises `CheckError` when there is no such exercise.
    """
    exercise = find_exercise(identifier)
    verdict = judge(exercise, answer, random.randrange(2**31) if seed is None else seed)
    record(identifier, str(verdict.state), _symptom(verdict))
    return verdict


def judge(exercise: Exercise, answer: object, seed: int) -> Verdict:
    """The verdict on `answer`, without writing progress."""
    reason = exercise.unavailable()
    if reason:
        return Verdict(exercise, State.SKIPPED, (("Because", reason),))
    try:
        finding = exercise.examine(answer, seed)
    except NotRun as rest:
        return Verdict(exercise, State.SKIPPED, (("Because", str(rest)),))
    except NotImplementedError:
        return Verdict(exercise, State.NOT_STARTED, (("Next", f'write your answer, or hint("{exercise.id}")'),))
    except (Exception, SystemExit) as error:
        return Verdict(exercise, State.ERROR, (*_their_error(error), *_repeat(exercise, seed)))
    if finding is None:
        return Verdict(exercise, State.PASS)
    return Verdict(exercise, State.NOT_YET, (*_explain(exercise, finding), *_repeat(exercise, seed)))


def _explain(exercise: Exercise, finding: Finding) -> tuple[tuple[str, str], ...]:
    next_step = f'hint("{exercise.id}", {finding.hint}) of {len(exercise.hints)}'
    return (
        ("Property", finding.property),
        ("Saw", finding.saw),
        ("Kind", str(finding.symptom)),
        ("Next", next_step),
    )


def _repeat(exercise: Exercise, seed: int) -> tuple[tuple[str, str], ...]:
    """How to see the same inputs again."""
    return (("Repeat", f'check("{exercise.id}", …, seed={seed}) with helpers {helpers.__version__}'),)


def _their_error(error: BaseException) -> tuple[tuple[str, str], ...]:
    """The exception, and the frames of the learner's own code."""
    frames = [
        f"line {frame.lineno}, in {frame.name}: {frame.line}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(NOT_THEIRS)
    ]
    where = (("Where", "\n".join(frames[-4:])),) if frames else ()
    return (("Raised", f"{type(error).__name__}: {error}"), *where)


def _symptom(verdict: Verdict) -> str:
    return dict(verdict.details).get("Kind", "")


_revealed: dict[str, int] = {}


def hint(identifier: str, number: int | None = None) -> None:
    """Print the next hint of an exercise, or hint `number` (from 1).

    Raises `CheckError` for an exercise or a number that does not exist.
    """
    exercise = find_exercise(identifier)
    if number is None:
        number = min(_revealed.get(identifier, 0) + 1, len(exercise.hints))
    if not 1 <= number <= len(exercise.hints):
        raise CheckError(f"{identifier} has no hint {number}", mend=f"it has hints 1 to {len(exercise.hints)}")
    _revealed[identifier] = number
    print(f"Hint {number} of {len(exercise.hints)}: {exercise.hints[number - 1]}")
