"""Which rows a rank keeps: how an answer is examined."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from helpers.course.exercise import Exercise, Finding, Symptom

if TYPE_CHECKING:
    from torch import Tensor

    Shard = Callable[[Tensor, int, int], Tensor]


@dataclass(frozen=True)
class Split:
    """One input: a parameter of `shape` on `world` ranks."""

    shape: tuple[int, ...]
    world: int
    dtype: str = "float32"
    device: str = "cpu"

    def __str__(self) -> str:
        kind = "" if self.dtype == "float32" else f" {self.dtype}"
        place = "" if self.device == "cpu" else f" on the {self.device} device"
        return f"a{kind} parameter of shape {self.shape}{place} on {self.world} ranks"

    @property
    def even(self) -> bool:
        """Whether the ranks divide the rows."""
        return self.shape[0] % self.world == 0


def rows_kept(full: "Tensor", rank: int, world: int) -> "Tensor":
    """The rows of `full` that `fully_shard` leaves on a rank: the oracle of training.1.

    `torch.chunk` makes pieces of ceil(rows / world) rows and stops when they run out; a rank
    without a piece keeps zero rows. `tests/training` compares this with real ranks.
    """
    pieces = full.chunk(world)
    return pieces[rank] if rank < len(pieces) else full[:0]


def examine_shard(answer: "Shard", seed: int) -> Finding | None:
    """The first split on which `answer(full, rank, world)` is not what `fully_shard` keeps."""
    for split in _splits(seed):
        for rank in range(split.world):
            if finding := _examine_rank(answer, split, rank, seed):
                return finding
    return None


def _splits(seed: int) -> Iterator[Split]:
    """Small splits first, so that the first failure is also the smallest."""
    yield Split((4,), 2)
    yield Split((8, 3), 4)
    yield Split((5, 2), 2)
    yield Split((6, 2), 4)
    yield Split((2, 3), 4)
    yield Split((3, 2), 1)
    yield Split((5, 2), 4, dtype="bfloat16")
    yield Split((2, 3), 4, device="meta")
    draw = random.Random(seed)
    for dims in (1, 2, 3):
        yield Split(tuple(draw.randint(1, 12) for _ in range(dims)), draw.randint(2, 8))


def _examine_rank(answer: "Shard", split: Split, rank: int, seed: int) -> Finding | None:
    import torch

    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-64, 64, split.shape, generator=generator)
    full = values.to(getattr(torch, split.dtype)).to(split.device)
    before = full.clone()
    got = answer(full, rank, split.world)
    where = f"{split}: rank {rank}"
    if not isinstance(got, torch.Tensor):
        return Finding("A rank keeps one tensor.", f"{where} got a {type(got).__name__}", Symptom.TYPE, 1)
    looks = (_form, _count, _content, _memory)
    expected = rows_kept(before, rank, split.world)
    return next((found for look in looks if (found := look(got, expected, full, before, split, where))), None)


def _form(got, expected, full, before, split: Split, where: str) -> Finding | None:
    """Element type, device and row shape are those of the whole parameter."""
    if got.dtype != expected.dtype:
        return Finding("A shard keeps the element type.", f"{where} got {got.dtype}", Symptom.DTYPE, 3)
    if got.device != expected.device:
        return Finding("A shard stays on its device.", f"{where} got {got.device}", Symptom.DEVICE, 3)
    if split.world > 1 and got.shape == before.shape != expected.shape:
        return Finding("A rank keeps a part.", f"{where} got all {len(got)} rows", Symptom.NOT_SHARDED, 1)
    if got.dim() != expected.dim() or got.shape[1:] != expected.shape[1:]:
        saw = f"{where} got shape {tuple(got.shape)}"
        return Finding("Only dimension 0 is cut; a row stays whole.", saw, Symptom.SHAPE, 1)
    return None


def _count(got, expected, full, before, split: Split, where: str) -> Finding | None:
    """How many rows: wrong in an even split is another mistake than wrong at the tail."""
    difference = len(got) - len(expected)
    if not difference:
        return None
    saw = f"{where} got {len(got)} row{'s' * (len(got) != 1)}"
    if not split.even:
        rule = "The first ranks are filled; the last ones keep what remains, perhaps nothing."
        return Finding(rule, saw, Symptom.TAIL, 2)
    symptom = Symptom.OFF_BY_ONE if abs(difference) == 1 else Symptom.SHAPE
    return Finding("Ranks that divide the rows keep equally many.", saw, symptom, 1)


def _content(got, expected, full, before, split: Split, where: str) -> Finding | None:
    """Which rows, and whether the whole parameter was left alone."""
    if split.device == "meta":
        return None
    if not full.equal(before):
        return Finding("The whole parameter is read only.", f"{where} changed it", Symptom.INPUT_CHANGED, 4)
    if not got.equal(expected):
        saw = f"{where} got other rows, or the same in another order"
        return Finding("Rank r keeps the r-th run of neighbouring rows.", saw, Symptom.VALUE, 2)
    return None


def _memory(got, expected, full, before, split: Split, where: str) -> Finding | None:
    """A view would keep the whole parameter in memory: the very thing sharding is to free."""
    held = got.untyped_storage().nbytes()
    own = got.numel() * got.element_size()
    if split.world > 1 and held > own:
        rule = "A shard owns its memory, so that the whole parameter can be freed."
        return Finding(rule, f"{where} got {own} bytes that keep {held} alive", Symptom.NOT_FREED, 4)
    return None


EXERCISES = (
    Exercise(
        id="training.1",
        title="Which rows does each rank keep?",
        hints=(
            "Cut dimension 0 only: a rank keeps a run of neighbouring rows, with all their columns.",
            "Every rank but the last ones keeps ceil(rows / world) rows. So rank r starts at r times that "
            "number, and must not run past the end.",
            "A slice that starts behind the last row is empty, and keeps dtype, device and columns: no "
            "special case is needed for a rank without rows.",
            "A slice is a view: it keeps the whole parameter alive. One more call gives it memory of its own.",
        ),
        examine=examine_shard,
    ),
)
