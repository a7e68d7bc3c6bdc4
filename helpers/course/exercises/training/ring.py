"""All-gather and reduce-scatter over a ring: how both answers are examined."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from helpers.course.exercise import Exercise, Finding, Symptom
from helpers.course.exercises.training.ring_network import (
    DeadlockError,
    EndlessError,
    MisuseError,
    Traffic,
    run_ranks,
)

if TYPE_CHECKING:
    from torch import Tensor

    Collective = Callable[[Tensor, int, int, Callable, Callable], Tensor]


@dataclass(frozen=True)
class Case:
    """One input: chunks of `shape` on `world` ranks. drawn: `integers`, whose sums are exact, or `floats`."""

    world: int
    shape: tuple[int, ...]
    dtype: str = "float32"
    drawn: str = "integers"

    def __str__(self) -> str:
        kind = "" if self.dtype == "float32" else f" {self.dtype}"
        return f"{self.world} ranks, chunks of{kind} shape {self.shape}"

    @property
    def whole(self) -> tuple[int, ...]:
        """The shape of all chunks together."""
        return (self.world * self.shape[0], *self.shape[1:])


class Look(NamedTuple):
    """What a property is judged by.

    case: the input. kept: what each rank was given, before. given: the same tensors afterwards.
    truths: what each rank should return, in fp64. slack: the rounding that is allowed at each element.
    """

    case: Case
    kept: "Sequence[Tensor]"
    given: "Sequence[Tensor]"
    traffic: Traffic
    truths: "Sequence[Tensor]"
    slack: "Sequence[Tensor]"


def gathered(shards: "Sequence[Tensor]") -> "Tensor":
    """All shards in rank order along dimension 0: the oracle of training.3."""
    import torch

    return torch.cat(list(shards))


def reduced(fulls: "Sequence[Tensor]") -> "tuple[Tensor, ...]":
    """For each rank its chunk of the sum, in fp64: the oracle of training.4."""
    import torch

    return torch.stack([full.double() for full in fulls]).sum(0).chunk(len(fulls))


def examine_gather(answer: "Collective", seed: int) -> Finding | None:
    """The first property of a ring all-gather that `answer(shard, rank, world, send, receive)` lacks."""
    for case in _cases(seed):
        shards = _draw(case, case.shape, seed)
        whole = gathered(shards).double()
        truths = [whole] * case.world
        if finding := _examine(answer, case, shards, truths, [whole * 0] * case.world, GATHER_JUDGES):
            return finding
    return None


def examine_scatter(answer: "Collective", seed: int) -> Finding | None:
    """The first property of a ring reduce-scatter that `answer(full, rank, world, send, receive)` lacks."""
    for case in _cases(seed):
        fulls = _draw(case, case.whole, seed)
        slack = [_rounding(case) * part for part in reduced([full.abs() for full in fulls])]
        if finding := _examine(answer, case, fulls, reduced(fulls), slack, SCATTER_JUDGES):
            return finding
    return None


def _cases(seed: int) -> Iterator[Case]:
    """Three ranks first: on a ring of two both neighbours are the same rank."""
    yield Case(3, (1,))
    yield Case(2, (1,))
    yield Case(1, (2, 3))
    yield Case(3, (4, 2))
    yield Case(4, (1, 3))
    yield Case(5, (3, 2, 2))
    yield Case(4, (2, 2), dtype="bfloat16")
    yield Case(4, (2, 3), dtype="int64")
    draw = random.Random(seed)
    for dims in (1, 2, 3):
        shape = tuple(draw.randint(1, 6) for _ in range(dims))
        yield Case(draw.randint(2, 8), shape, drawn="floats")


def _draw(case: Case, shape: tuple[int, ...], seed: int) -> "list[Tensor]":
    """One tensor a rank: no two elements alike, as far as bf16 can tell them and their sums apart."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    count = case.world * prod(shape)
    if case.drawn == "floats":
        values = torch.randn(count, generator=generator)
    else:
        values = (torch.randperm(count, generator=generator) - count // 3) % 61 - 30
    dtype = getattr(torch, case.dtype)
    return [part.reshape(shape).to(dtype).clone() for part in values.chunk(case.world)]


def _rounding(case: Case) -> float:
    """W − 1 additions in fp32 are off by less than this share of the sum of magnitudes (Higham 2002, section 4.2)."""
    return 2 * case.world * 2.0**-24 if case.drawn == "floats" else 0.0


def _examine(answer: "Collective", case: Case, inputs, truths, slack, judges) -> Finding | None:
    kept = [each.clone() for each in inputs]
    try:
        traffic = run_ranks(answer, inputs)
    except DeadlockError as error:
        rule = "Every receive is answered, and every rank ends."
        return Finding(rule, f"{case}: {error.what}", Symptom.HANGS, 2)
    except EndlessError as error:
        return Finding("Every rank ends.", f"{case}: {error.what}", Symptom.HANGS, 2)
    except MisuseError as error:
        rule = "send(tensor, to) and receive(source) name one of the other ranks; the ring is closed."
        return Finding(rule, f"{case}: {error.what}", Symptom.INTERFACE, 2)
    look = Look(case, kept, inputs, traffic, truths, slack)
    return next((found for judge in judges if (found := judge(look))), None)


def _type(look: Look) -> Finding | None:
    """One tensor for each rank."""
    import torch

    for rank, got in enumerate(look.traffic.results):
        if not isinstance(got, torch.Tensor):
            saw = f"{look.case}: rank {rank} returned a {type(got).__name__}"
            return Finding("Every rank returns one tensor.", saw, Symptom.TYPE, 1)
    return None


def _dtype(look: Look) -> Finding | None:
    for rank, got in enumerate(look.traffic.results):
        if got.dtype != look.kept[rank].dtype:
            saw = f"{look.case}: rank {rank} returned {got.dtype}"
            return Finding("The result keeps the element type.", saw, Symptom.DTYPE, 1)
    return None


def _shape(look: Look) -> Finding | None:
    for rank, (got, truth) in enumerate(zip(look.traffic.results, look.truths)):
        if got.shape != truth.shape:
            saw = f"{look.case}: rank {rank} returned shape {tuple(got.shape)}"
            return Finding("Dimension 0 runs over ranks; the others stay.", saw, Symptom.SHAPE, 1)
    return None


def _part_only(look: Look) -> Finding | None:
    """A rank of a reduce-scatter keeps one chunk of the sum."""
    for rank, (got, full) in enumerate(zip(look.traffic.results, look.kept)):
        if look.case.world > 1 and got.shape == full.shape:
            saw = f"{look.case}: rank {rank} returned all {len(got)} rows"
            return Finding("A rank keeps its chunk of the sum, and no other.", saw, Symptom.NOT_SHARDED, 1)
    return None


def _input(look: Look) -> Finding | None:
    for rank, (before, after) in enumerate(zip(look.kept, look.given)):
        if before.shape != after.shape or not before.equal(after):
            saw = f"{look.case}: rank {rank} changed its own"
            return Finding("The tensor that a rank is given is read only.", saw, Symptom.INPUT_CHANGED, 4)
    return None


def _order(look: Look) -> Finding | None:
    """An all-gather's values: each chunk is in its place."""
    if all(_near(got, truth, 0) for got, truth in zip(look.traffic.results, look.truths)):
        return None
    case = look.case
    rank = next(r for r in range(case.world) if not _near(look.traffic.results[r], look.truths[r], 0))
    pairs = zip(look.traffic.results[rank].chunk(case.world), look.truths[rank].chunk(case.world))
    wrong = [number for number, (got, truth) in enumerate(pairs) if not _near(got, truth, 0)]
    saw = f"{case}: on rank {rank} chunk {', '.join(map(str, wrong))} of the result is wrong"
    if len(wrong) == 1 < case.world - 1 and len(look.traffic.messages) < case.world * (case.world - 1):
        return Finding("W − 1 steps bring every chunk to every rank.", saw, Symptom.OFF_BY_ONE, 3)
    return Finding("Chunk r of the result is what rank r was given.", saw, Symptom.VALUE, 3)


def _sum(look: Look) -> Finding | None:
    """A reduce-scatter's values: the sum over all ranks, each chunk on its owner."""
    results, truths, slack = look.traffic.results, look.truths, look.slack
    wrong = [r for r, got in enumerate(results) if not _near(got, truths[r], slack[r])]
    if not wrong:
        return None
    saw, world = f"{look.case}: rank {wrong[0]} returned something else", look.case.world
    for shift in (1, world - 1):
        moved = [(rank + shift) % world for rank in range(world)]
        if world > 1 and all(_near(got, truths[m], slack[m]) for got, m in zip(results, moved)):
            saw = f"{look.case}: every rank has the chunk of a neighbour"
            return Finding("Rank r ends with chunk r of the sum.", saw, Symptom.OFF_BY_ONE, 3)
    for factor, name in ((1 / world, "the mean"), (2, "twice the sum"), (world, "W times the sum")):
        if all(_near(got, truths[r] * factor, slack[r] + truths[r].abs() / 50) for r, got in enumerate(results)):
            saw = f"{look.case}: the ranks have {name}"
            return Finding("Chunks are added, not averaged, and each rank's once.", saw, Symptom.CONSTANT_FACTOR, 4)
    return Finding("Rank r ends with the sum over all ranks of chunk r.", saw, Symptom.VALUE, 3)


def _near(got: "Tensor", truth: "Tensor", slack: "Tensor | float") -> bool:
    return bool(((got.double() - truth).abs() <= slack).all())


def _all_arrive(look: Look) -> Finding | None:
    """Nothing is sent that nobody receives."""
    lost = look.traffic.undelivered
    if not lost:
        return None
    saw = f"{look.case}: rank {lost[0].source} sent a message that rank {lost[0].to} never received"
    return Finding("Every message is received.", saw, Symptom.TRAFFIC, 4)


def _bytes(look: Look) -> Finding | None:
    """Every rank sends each chunk but one: (W − 1)/W of the whole (Patarasuk & Yuan 2009, section 3)."""
    case, traffic = look.case, look.traffic
    size = prod(case.shape) * look.kept[0].element_size()
    for rank in range(case.world):
        sent = traffic.sent(rank)
        saw = f"{case}, {size} bytes each: rank {rank} sent {sent} bytes"
        if sent > (case.world - 1) * size:
            return Finding("A rank sends (W − 1)/W of the whole tensor.", saw, Symptom.TRAFFIC, 4)
        if sent < (case.world - 1) * size:
            return Finding("Ranks share nothing: values travel by send.", saw, Symptom.INTERFACE, 2)
    return None


def _neighbours(look: Look) -> Finding | None:
    """On a ring a rank sends to one neighbour."""
    for rank in range(look.case.world):
        partners = look.traffic.partners(rank)
        if len(partners) > 1:
            saw = f"{look.case}: rank {rank} sent to ranks {', '.join(map(str, sorted(partners)))}"
            return Finding("On a ring a rank sends to one other rank only.", saw, Symptom.TRAFFIC, 2)
    return None


def _messages(look: Look) -> Finding | None:
    """One message a step, for each costs its latency."""
    for rank in range(look.case.world):
        count = sum(each.source == rank for each in look.traffic.messages)
        if count > look.case.world - 1:
            saw = f"{look.case}: rank {rank} sent {count} messages"
            return Finding("A rank sends one message in each of W − 1 steps.", saw, Symptom.TRAFFIC, 4)
    return None


def _memory(look: Look) -> Finding | None:
    """A chunk of the sum owns its memory."""
    for rank, got in enumerate(look.traffic.results):
        held, own = got.untyped_storage().nbytes(), got.numel() * got.element_size()
        if look.case.world > 1 and held > own:
            saw = f"{look.case}: rank {rank} returned {own} bytes that keep {held} alive"
            return Finding("The chunk owns its memory, so that the rest can be freed.", saw, Symptom.NOT_FREED, 4)
        if got.numel() and got.untyped_storage().data_ptr() == look.given[rank].untyped_storage().data_ptr():
            saw = f"{look.case}: rank {rank} returned the memory of the tensor that it was given"
            return Finding("The chunk owns its memory, also on one rank.", saw, Symptom.NOT_FREED, 4)
    return None


RING_JUDGES = (_all_arrive, _bytes, _neighbours, _messages)
GATHER_JUDGES = (_type, _dtype, _shape, _input, _order, *RING_JUDGES)
SCATTER_JUDGES = (_type, _dtype, _part_only, _shape, _input, _sum, *RING_JUDGES, _memory)

EXERCISES = (
    Exercise(
        id="training.3",
        title="All-gather over a ring",
        hints=(
            "The result is one tensor with world times the rows of the shard: chunk r holds what rank r was given.",
            "Rank r sends to rank r + 1 and receives from rank r − 1, both modulo world. All ranks do the same in "
            "each step: first send, then receive.",
            "A rank first sends its own chunk. After that, what does it have that its neighbour still lacks? "
            "What arrives in step s comes from the rank that is s + 1 places back.",
            "W − 1 steps suffice, with one message of one chunk in each. Write into a result of your own: the "
            "shard that you were given stays as it is.",
        ),
        examine=examine_gather,
    ),
    Exercise(
        id="training.4",
        title="Reduce-scatter over a ring",
        hints=(
            "Cut the tensor along dimension 0 into world chunks. The result has the shape of one chunk.",
            "The partners are those of the all-gather: send to rank r + 1, receive from rank r − 1, modulo world; "
            "first send, then receive.",
            "Think of one chunk: its partial sum passes every rank once and must end on its owner. So on which rank "
            "does its journey begin, and which chunk does a rank send first?",
            "W − 1 steps: send the partial sum that you hold, receive another, and make a new tensor: what came, "
            "plus your own chunk of the same number. No step writes into what you were given; nothing is divided.",
        ),
        examine=examine_scatter,
    ),
)
