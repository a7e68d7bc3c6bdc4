"""A model that is handed from one runtime to the next: are its logits the same, and where they are not, why?"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from helpers.errors import CourseError
from helpers.measure import Quantity, measured, predicted, simulated

HEADERS = ("who answers", "largest |Δ logit|", "its bound", "within", "from the trained model", "same choices")


class HandoverError(CourseError):
    """Answers that cannot be compared."""


@dataclass(frozen=True)
class Answer:
    """The logits of one runtime for a fixed text, beside what they should be.

    name: of the runtime. logits (T, vocab). truth: (T, vocab) in float64, with the weights that this runtime
    holds, so that rounding the weights and computing wrongly are two things. limit: how far a right answer may
    be from `truth`. stand_in: what answered instead, '' when the runtime did itself.
    Raises `HandoverError` for other shapes, none at all, or a truth in less than float64.
    """

    name: str
    logits: np.ndarray
    truth: np.ndarray
    limit: float
    stand_in: str = ""

    def __post_init__(self):
        shape = np.shape(self.logits)
        if len(shape) != 2 or not all(shape) or shape != np.shape(self.truth):
            raise HandoverError(
                f"logits of {shape} beside a truth of {np.shape(self.truth)}",
                where=self.name,
                mend="give both as (tokens, vocab), for the same text",
            )
        if self.truth.dtype != np.float64:
            raise HandoverError(f"the truth is {self.truth.dtype}", where=self.name, mend="compute it in float64")

    @property
    def error(self) -> Quantity:
        """The largest distance of a logit from the truth of this runtime's own weights."""
        return self._stamped(_furthest(self.logits, self.truth))

    @property
    def within(self) -> bool:
        """Whether no logit is further from it than `limit`; one that is not a number is."""
        return bool(self.error.value <= self.limit)

    def moved_from(self, trained: "Answer") -> Quantity:
        """The largest distance of a logit from the truth of the trained weights."""
        _require_one_text(self, trained)
        return self._stamped(_furthest(self.logits, trained.truth))

    def same_choices(self, trained: "Answer") -> int:
        """At how many tokens the likeliest next one is that of the trained weights in float64."""
        _require_one_text(self, trained)
        return int((self.logits.argmax(-1) == trained.truth.argmax(-1)).sum())

    def _stamped(self, value: float) -> Quantity:
        return simulated(value, "", self.stand_in) if self.stand_in else measured(value, "")


def handover_rows(answers: Sequence[Answer]) -> tuple[tuple[object, ...], ...]:
    """A row under `HEADERS` for each runtime; the first one is the trained model.

    Raises `HandoverError` without an answer, or for answers to texts of different lengths.
    """
    if not answers:
        raise HandoverError("there is no answer to compare", mend="begin with the trained model's")
    trained = answers[0]
    return tuple(
        (
            answer.name,
            answer.error,
            predicted(answer.limit, "", "4·√N·u·max"),
            "yes" if answer.within else "NO",
            answer.moved_from(trained),
            f"{answer.same_choices(trained)} of {len(answer.logits)}",
        )
        for answer in answers
    )


def parted_at(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The place of the first token in which two texts differ, the end of the shorter one included; else None."""
    for place, (left, right) in enumerate(zip(one, other)):
        if left != right:
            return place
    return None if len(one) == len(other) else min(len(one), len(other))


def _require_one_text(one: Answer, other: Answer) -> None:
    if np.shape(one.logits) != np.shape(other.truth):
        raise HandoverError(
            f"logits of {np.shape(one.logits)} beside {np.shape(other.truth)} of {other.name}",
            where=one.name,
            mend="let both answer the same text",
        )


def _furthest(logits: np.ndarray, truth: np.ndarray) -> float:
    return float(np.abs(np.asarray(logits, np.float64) - truth).max())
