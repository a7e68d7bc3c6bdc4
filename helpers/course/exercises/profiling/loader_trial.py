"""How a mended loader is examined: the same batches, and no character encoded twice."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from helpers.course.exercise import Finding, Symptom
from helpers.course.exercises.deadline import TooLong, within

if TYPE_CHECKING:
    from torch import Tensor

DEADLINE_S = 3.0
AGAIN = 40  # batches of two runs that are compared: chance does not repeat itself so often
ENDLESS = "The batches go on for ever: after the last window comes the first one again."
LETTERS = "abcdefghijkl\n"


@dataclass(frozen=True)
class Reading:
    """One input: so many batches of `batch` windows from a text of `characters` characters."""

    characters: int
    context: int
    batch: int
    batches: int

    def __str__(self) -> str:
        return f"{self.characters} characters, context {self.context}, batch {self.batch}"

    @property
    def windows(self) -> int:
        """Windows of the text: each needs one character more than its context, for the last target."""
        return (self.characters - 1) // self.context

    def starts(self, index: int) -> list[int]:
        """Where the windows of a batch begin: the oracle's part."""
        first = index * self.batch
        return [place % self.windows * self.context for place in range(first, first + self.batch)]


@dataclass
class Encoder:
    """A table of tokens that no answer can guess, which counts what it encodes."""

    table: dict[str, int]
    encoded: int = 0
    pieces: list[int] = field(default_factory=list)

    def __call__(self, piece: str) -> list[int]:
        self.encoded += len(piece)
        self.pieces.append(len(piece))
        return [self.table[character] for character in piece]


def examine_batches(answer: Callable[..., Iterator], seed: int) -> Finding | None:
    """The first reading on which `answer(text, encode, context, batch)` is not right, or does its work again."""
    chance = random.Random(seed)
    inputs = [(reading, *_text_for(reading, chance)) for reading in _readings(chance)]
    for trial in (_right, _once, _owned):  # a shuffled loader may be right once, by chance: not on every reading
        for reading, text, table in inputs:
            try:
                finding = within(DEADLINE_S, partial(trial, answer, reading, text, table))
            except TooLong:
                saw = f"{reading}: no answer after {DEADLINE_S:g} s"
                return Finding("The next batch comes at once.", saw, Symptom.HANGS, 1)
            if finding:
                return finding
    return None


def _text_for(reading: Reading, chance: random.Random) -> tuple[str, dict[str, int]]:
    text = "".join(chance.choice(LETTERS) for _ in range(reading.characters))
    return text, dict(zip(LETTERS, chance.sample(range(256), len(LETTERS))))


def _readings(chance: random.Random) -> Iterator[Reading]:
    """Small ones first; each goes through its text more than once."""
    yield Reading(5, 2, 1, 5)
    yield Reading(13, 3, 2, 6)
    yield Reading(12, 3, 2, 6)
    for _ in range(4):
        context, batch, windows = chance.randint(2, 9), chance.randint(1, 5), chance.randint(3, 11)
        characters = windows * context + 1 + chance.randrange(context)
        yield Reading(characters, context, batch, 3 * windows // batch + 2)


def _right(answer, reading: Reading, text: str, table: dict[str, int]) -> Finding | None:
    import torch

    tokens = torch.tensor([table[character] for character in text])
    batches = _opened(answer(text, Encoder(table), reading.context, reading.batch))
    if batches is None:
        return Finding("The answer yields batches.", f"{reading}: it is no iterator", Symptom.TYPE, 1)
    for index in range(reading.batches):
        where = f"{reading}: batch {index}"
        got = next(batches, None)
        if got is None:
            return Finding(ENDLESS, f"{reading}: they end after {index}", Symptom.TAIL, 3)
        if finding := _form(got, reading, where):
            return finding
        rows = torch.stack([tokens[start : start + reading.context + 1] for start in reading.starts(index)])
        if not (got[0].equal(rows[:, :-1]) and got[1].equal(rows[:, 1:])):
            return _explain(answer, reading, text, table, index, got, rows)
    return None


def _opened(batches: object) -> Iterator | None:
    return iter(batches) if hasattr(batches, "__iter__") else None


def _form(got: object, reading: Reading, where: str) -> Finding | None:
    import torch

    if not isinstance(got, tuple | list) or len(got) != 2 or not all(isinstance(part, torch.Tensor) for part in got):
        saw = f"{where} is a {type(got).__name__}"
        return Finding("A batch is two tensors, inputs and targets.", saw, Symptom.TYPE, 1)
    for name, part in zip(("inputs", "targets"), got):
        if part.shape != (reading.batch, reading.context):
            saw = f"{where}: {name} of shape {tuple(part.shape)}"
            return Finding("Inputs and targets are (batch, context).", saw, Symptom.SHAPE, 3)
        if part.dtype != torch.int64:
            return Finding("Tokens are int64.", f"{where}: {name} are {part.dtype}", Symptom.DTYPE, 3)
    return None


def _explain(answer, reading: Reading, text, table, index: int, got, rows: "Tensor") -> Finding:
    runs = [_opened(answer(text, Encoder(table), reading.context, reading.batch)) for _ in range(2)]
    if not all(a.equal(b) for one, other in islice(zip(*runs), AGAIN) for a, b in zip(one, other)):
        saw = f"{reading}: the batches differ from one run to the next"
        return Finding("The windows come in the order of the text.", saw, Symptom.NONDETERMINISTIC, 3)
    where = f"{reading}: batch {index}"
    if got[0].equal(rows[:, :-1]):
        saw = f"{where}: the inputs are right, the targets are not"
        return Finding("A target is the token after its input.", saw, Symptom.OFF_BY_ONE, 3)
    first = next(place for place, row in enumerate(rows) if not got[0][place].equal(row[:-1]))
    again = [table[character] for character in text[: reading.context]]
    if (index + 1) * reading.batch > reading.windows or got[0][first].tolist() == again:
        saw = f"{where}: wrong from here on, where the text begins again"
        return Finding(ENDLESS, saw, Symptom.TAIL, 3)
    return Finding("The batches are those of the slow loader.", f"{where}: other tokens", Symptom.VALUE, 3)


def _once(answer, reading: Reading, text: str, table: dict[str, int]) -> Finding | None:
    encode = Encoder(table)
    batches = _opened(answer(text, encode, reading.context, reading.batch))
    for index in range(reading.batches):
        next(batches)
        if encode.encoded > len(text):
            saw = f"{reading}: {encode.encoded} characters encoded by batch {index}, in {len(encode.pieces)} calls"
            return Finding("No character is encoded twice.", saw, Symptom.REPEATED, 2)
    return None


def _owned(answer, reading: Reading, text: str, table: dict[str, int]) -> Finding | None:
    """A loop may write into its batch, as a mask does; the next round through the text must not see it."""
    import torch

    tokens = torch.tensor([table[character] for character in text])
    batches = _opened(answer(text, Encoder(table), reading.context, reading.batch))
    for index in range(reading.batches):
        got = next(batches)
        expected = torch.stack([tokens[start : start + reading.context] for start in reading.starts(index)])
        if not got[0].equal(expected):
            saw = f"{reading}: batch {index} holds what the loop wrote into an earlier one"
            return Finding("A batch owns its memory.", saw, Symptom.INPUT_CHANGED, 4)
        targets = got[1].clone()
        got[0].fill_(-1)
        if not got[1].equal(targets):
            saw = f"{reading}: what was written into the inputs of batch {index} is in its targets"
            return Finding("Inputs and targets are tensors of their own.", saw, Symptom.INPUT_CHANGED, 4)
        got[1].fill_(-1)
    return None
