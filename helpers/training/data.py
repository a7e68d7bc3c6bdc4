"""Real text without a download: the Python standard library's own sources, as bytes."""

import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from helpers.errors import CourseError

HELD_OUT_EVERY = 20
IGNORE = -100  # a target that no loss counts, as torch.nn.functional.cross_entropy has it
NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


class DataError(CourseError):
    """A corpus that is missing or too short, or a share of it that cannot be cut."""


@dataclass(frozen=True)
class Corpus:
    """The text that the model learns: uint8 tensors of bytes.

    train: what it learns from. held_out: every 20th file, which it never sees in training.
    files: how many files both were read from.
    """

    train: Tensor
    held_out: Tensor
    files: int


@dataclass(frozen=True)
class Batch:
    """inputs and targets, both (batch, context) int64; each target is the input's next byte."""

    inputs: Tensor
    targets: Tensor

    @property
    def tokens(self) -> int:
        """Targets that count."""
        return int((self.targets != IGNORE).sum())

    def split(self, parts: int) -> "tuple[Batch, ...]":
        """The batch in `parts` micro-batches of equally many windows."""
        return tuple(map(Batch, self.inputs.chunk(parts), self.targets.chunk(parts)))

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on another device."""
        return Batch(self.inputs.to(device), self.targets.to(device))


@cache
def standard_library(folder: Path | None = None) -> Corpus:
    """The sources of the running Python's standard library, without its tests.

    The files are taken in the order of their sorted paths, so every rank of one machine reads the
    same bytes; another Python version has other sources. folder: read from there instead.
    Raises `DataError` when the folder holds fewer than `HELD_OUT_EVERY` Python files.
    """
    root = folder or Path(sysconfig.get_path("stdlib"))
    paths = sorted(path for path in root.rglob("*.py") if not NOT_LIBRARY & {*path.relative_to(root).parts})
    if len(paths) < HELD_OUT_EVERY:
        raise DataError(
            f"found {len(paths)} Python files, too few to learn from",
            where=str(root),
            mend="install Python with its standard library as source files",
        )
    texts = [path.read_bytes() for path in paths]
    return Corpus(
        train=_tensor(text for index, text in enumerate(texts, 1) if index % HELD_OUT_EVERY),
        held_out=_tensor(texts[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]),
        files=len(paths),
    )


def _tensor(texts) -> Tensor:
    return torch.frombuffer(bytearray(b"".join(texts)), dtype=torch.uint8)


@dataclass(frozen=True)
class Batches:
    """The batches of one rank: any step, in any order, without a state to save.

    The text is cut into windows of `context` bytes. In each epoch the windows are shuffled by
    `seed`, the same way on every rank; a step takes the next `batch` windows, and rank r of
    `world` the r-th equal part of them. So the ranks' parts are disjoint, and side by side, in the
    order of the ranks, they are the batch of a single process.

    text: (bytes,) uint8. batch: windows of one step over all ranks. shortest: each window keeps
    a random number of targets from this to all of them, and the rest are `IGNORE`, as when short
    documents are padded; 0 keeps all.
    Raises `DataError` when the text is too short for one step, or the ranks cannot share a step.
    """

    text: Tensor
    context: int
    batch: int
    rank: int = 0
    world: int = 1
    seed: int = 0
    shortest: int = 0

    def __post_init__(self):
        if self.windows < self.batch:
            raise DataError(
                f"{len(self.text)} bytes hold {self.windows} windows of {self.context}, "
                f"fewer than the {self.batch} of one step",
                mend="choose a smaller batch or context",
            )
        if not 0 <= self.shortest <= self.context:
            raise DataError(f"windows cannot keep {self.shortest} targets", mend=f"use 0 to {self.context}")
        if self.batch % self.world or not 0 <= self.rank < self.world:
            raise DataError(
                f"rank {self.rank} of {self.world} has no equal part of {self.batch} windows",
                mend=f"use a number of ranks that divides {self.batch}",
            )

    @property
    def windows(self) -> int:
        """Windows of the whole text; each needs one byte more for its last target."""
        return (len(self.text) - 1) // self.context

    @property
    def steps_per_epoch(self) -> int:
        """Steps before a window comes again; the shuffled rest of an epoch is left out."""
        return self.windows // self.batch

    def chosen(self, step: int) -> Tensor:
        """The windows of this rank at `step`: (batch / world,) int64."""
        epoch, place = divmod(step, self.steps_per_epoch)
        order = _order(self.windows, self.seed, epoch)
        share = self.batch // self.world
        start = place * self.batch + self.rank * share
        return order[start : start + share]

    def at(self, step: int) -> Batch:
        """The batch of this rank at `step`."""
        offsets = torch.arange(self.context + 1)
        rows = self.text[self.chosen(step)[:, None] * self.context + offsets].long()
        return Batch(rows[:, :-1].contiguous(), self._padded(rows[:, 1:].contiguous(), step))

    def _padded(self, targets: Tensor, step: int) -> Tensor:
        """Targets with a random end of each window ignored; a window has the same end on any rank."""
        if self.shortest:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
            lengths = torch.randint(self.shortest, self.context + 1, (self.batch,), generator=generator)
            mine = lengths.chunk(self.world)[self.rank]
            targets[torch.arange(self.context) >= mine[:, None]] = IGNORE
        return targets


@cache
def _order(windows: int, seed: int, epoch: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(windows, generator=generator)
