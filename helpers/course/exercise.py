"""What an exercise is: an id, its hints, and an examination that names one finding."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Symptom(StrEnum):
    """The class of a wrong answer, in words that a learner and an instructor both use."""

    SHAPE = "wrong shape"
    DTYPE = "wrong dtype"
    DEVICE = "wrong device"
    TYPE = "wrong type"
    VALUE = "wrong value"
    CONSTANT_FACTOR = "off by a constant factor"
    OFF_BY_ONE = "off by one"
    NOT_SHARDED = "not sharded"
    NOT_FREED = "not freed"
    TAIL = "the tail is wrong"
    ABOVE_ROOF = "above the roof"
    OUT_OF_BOUNDS = "out of bounds"
    NAN = "not a number"
    NONDETERMINISTIC = "not deterministic"
    INPUT_CHANGED = "the input was changed"
    INTERFACE = "wrong interface"
    DOES_NOT_COMPILE = "does not compile"
    INVALID_USE = "rejected by the validation layer"
    HANGS = "hangs"
    ABORTS = "aborts"
    TRAINS_NOTHING = "trains nothing"
    INCONSISTENT = "the ranks differ"
    TRAFFIC = "too much traffic"
    MEMORY = "too much memory"
    REPEATED = "does work again"
    WAITS = "waits too often"
    LAUNCHES = "too many launches"


class NotRun(Exception):
    """Raised by `examine` where all that this machine can examine holds; its text says why the rest did not run."""


@dataclass(frozen=True)
class Finding:
    """The first property that an answer lacks. It never carries the expected values.

    property: what should hold, in one sentence. saw: what was seen instead, with the smallest
    failing input (shape, dtype, rank, index, largest error). symptom: the class. hint: the number
    (from 1) of the hint that helps most.
    """

    property: str
    saw: str
    symptom: Symptom
    hint: int = 1


@dataclass(frozen=True)
class Exercise:
    """One exercise of a lab.

    id: `track.number`, as `training.1`. title: what the learner builds. hints: from general to
    concrete, none of them the answer. examine: takes the learner's answer (a function, or a text
    such as GLSL source) and returns the first `Finding`, or None when every property holds; it
    draws fresh inputs from `seed` and computes its oracle at run time. An exception of the
    answer passes through it untouched; so does `NotRun`, which is no fault. unavailable: returns
    why the check cannot run on this machine, or None when it can.
    """

    id: str
    title: str
    hints: tuple[str, ...]
    examine: Callable[[object, int], Finding | None]
    unavailable: Callable[[], str | None] = lambda: None
