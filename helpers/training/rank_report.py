"""How a call on the ranks ended, told in one error that a learner can act on."""

import inspect
import linecache
import re
import signal
import sys
import sysconfig
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from helpers.errors import CourseError
from helpers.training.flight import Flight, compare_flights
from helpers.training.rank_process import Failure, Frame

LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
STACK_LINE = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)
LOST_PEER = re.compile(r"connection (closed|reset)|remote process exited|broken pipe", re.IGNORECASE)
NOISE = re.compile(r"^\[\S+:\d+\] |(?<=\.) This is typically caused.*$|^what\(\):\s*", re.DOTALL)
ENFORCED = re.compile(r"\[enforce fail at \S+\] ")
UNNAMED = "<dynamic-code>"
SHOWN_FRAMES = 3
DEATH_MENDS = {
    signal.SIGKILL: "the system may have run out of memory: use a smaller batch or fewer ranks",
    signal.SIGABRT: "a C++ library gave up, as gloo does when ranks pass tensors of different shapes to "
    "one collective: compare the shapes rank by rank",
    signal.SIGSEGV: "native code touched memory that is not its own: try the call on one rank",
}


class RanksError(CourseError):
    """Ranks that could not start, or a call that did not end well on every rank."""


class Ending(StrEnum):
    """How a call ended on one rank."""

    RETURNED = "returned"
    RAISED = "raised"
    DIED = "died"
    UNREADABLE = "returned what cannot be read"
    WAITING = "did not answer"


@dataclass(frozen=True)
class Story:
    """One rank's end of a call.

    value: by `ending` the result, the `Failure`, the exit code (int, negative for a signal), what
    is wrong with the answer (str), or the frames (innermost first) of a rank that did not answer.
    words: the last line a dead rank wrote to stderr. flight: the collectives that a living rank has
    called, when some rank did not answer.
    """

    rank: int
    ending: Ending
    value: object = None
    words: str = ""
    flight: tuple[Flight, ...] | None = None


def frames_of_stack(text: str) -> tuple[Frame, ...]:
    """The frames in a stack that `faulthandler` wrote, innermost first."""
    return tuple(Frame(m["file"], int(m["line"]), m["function"]) for m in STACK_LINE.finditer(text))


def ranks_error(stories: list[Story], deadline_s: float) -> RanksError:
    """One error for all ranks: the first cause in `what`, the other ranks' ends in `where`."""
    first = min(stories, key=_urgency)
    alike = [story for story in stories if story is first or _same_cause(story, first)]
    others = [s for s in stories if s not in alike or (s.ending is Ending.WAITING and s is not first)]
    who = _names([story.rank for story in alike])
    if len(alike) == len(stories) > 1:
        who = f"all {len(stories)} ranks"
    lines = [*_place(first), *(f"{_names([story.rank])} {_end(story)}" for story in others)]
    lines += compare_flights({story.rank: story.flight for story in stories if story.flight is not None})
    return RanksError(f"{who} {_cause(first, deadline_s)}", where="\n         ".join(lines), mend=_mend(first))


def _urgency(story: Story) -> tuple[int, int]:
    """Causes before consequences: a lost connection follows from another rank's death."""
    order = [Ending.DIED, Ending.RAISED, Ending.UNREADABLE, Ending.WAITING, Ending.RETURNED]
    consequence = story.ending is Ending.RAISED and LOST_PEER.search(story.value.message)
    return (len(order) - 2 if consequence else order.index(story.ending), story.rank)


def _same_cause(story: Story, first: Story) -> bool:
    if story.ending is not first.ending:
        return False
    if story.ending is Ending.RAISED:
        return (story.value.kind, story.value.message) == (first.value.kind, first.value.message)
    return story.ending is Ending.WAITING or story.value == first.value


def _names(ranks: list[int]) -> str:
    words = [str(rank) for rank in ranks]
    if len(words) == 1:
        return f"rank {words[0]}"
    return f"ranks {', '.join(words[:-1])} and {words[-1]}"


def _cause(story: Story, deadline_s: float) -> str:
    value = story.value
    if story.ending is Ending.RAISED:
        return _raised(value)
    if story.ending is Ending.DIED:
        return _died(value) + (f"; last words: {_clean(story.words)}" if story.words else "")
    if story.ending is Ending.UNREADABLE:
        return f"returned a result that cannot be read here: {value}"
    return f"did not answer within {deadline_s:g} s"


def _raised(failure: Failure) -> str:
    if failure.kind == "SystemExit":
        return f"called sys.exit({failure.message})"
    return f"raised {failure.kind}: {_clean(failure.message)}"


def _clean(message: str) -> str:
    """A message of gloo's C++ without source positions and without its standard advice."""
    return ENFORCED.sub("", NOISE.sub("", message)).strip()


def _died(code: int | None) -> str:
    if code is None:
        return "closed its connection before it answered"
    if code >= 0:
        return f"ended with exit code {code} before it answered"
    return f"was killed by {signal.Signals(-code).name}"


def _end(story: Story) -> str:
    if story.ending is Ending.RETURNED:
        return "returned"
    if story.ending is Ending.RAISED:
        return "then " + _raised(story.value).splitlines()[0]
    if story.ending is Ending.DIED:
        return _died(story.value)
    if story.ending is Ending.UNREADABLE:
        return "returned"
    return f"waited {_waited_in(story.value)}"


def _place(story: Story) -> list[str]:
    if story.ending is Ending.RAISED:
        return [_line(frame) for frame in _own(story.value.frames)[-SHOWN_FRAMES:]]
    if story.ending is Ending.WAITING:
        return [f"rank {story.rank} waited {_waited_in(story.value)}"]
    return []


def _waited_in(frames: tuple[Frame, ...]) -> str:
    """The learner's line, and the library call that it is in."""
    for index, frame in enumerate(frames):
        if not _is_library(frame):
            called = [inner.function for inner in frames[:index] if inner.function not in ("wrapper", "")]
            return (f"in {called[-1]}, called at " if called else "at ") + _line(frame)
    return "outside any function of yours"


def _own(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    return tuple(frame for frame in frames if not _is_library(frame)) or frames[-1:]


def _is_library(frame: Frame) -> bool:
    return frame.file.startswith(("<frozen", *LIBRARIES)) or "rank_process" in frame.file


def _line(frame: Frame) -> str:
    path = Path(_file(frame))
    name = f"{path.parent.name}/{path.name}" if path.is_file() else "cell"
    source = linecache.getline(str(path), frame.line).strip()
    return f"{name}, line {frame.line}, in {frame.function}" + (f": {source}" if source else "")


def _file(frame: Frame) -> str:
    """The file of a frame; cloudpickle drops it from functions that live in `__main__`."""
    if frame.file != UNNAMED:
        return frame.file
    function = getattr(sys.modules["__main__"], frame.function, None)
    return function.__code__.co_filename if inspect.isfunction(function) else frame.file


def _mend(story: Story) -> str:
    if story.ending is Ending.WAITING:
        return "every rank must call the same collectives in the same order; for long work raise deadline_s"
    if story.ending is Ending.DIED:
        return DEATH_MENDS.get(-(story.value or 0), "see what the ranks printed above")
    if story.ending is Ending.UNREADABLE:
        return "return numbers, or tensors made whole with .full_tensor() or local with .to_local()"
    if LOST_PEER.search(story.value.message):
        return "a peer left the process group early: see what the other ranks did"
    return "correct the function, then start a new pool: this one is closed"
