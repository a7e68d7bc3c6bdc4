"""Fill the ledger: how the predicted bytes of one rank are examined."""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING

from helpers.course.exercise import Exercise, Finding, Symptom
from helpers.course.exercises.deadline import TooLong, within

if TYPE_CHECKING:
    from torch import Tensor

    from helpers.training.model import ModelConfig
    from helpers.training.plan import ShardingPlan

    Cut = Callable[[Tensor, int], Tensor]

STATE = ("parameters", "gradients", "optimizer")
LINES = (*STATE, "unsharded group", "reduce-scatter buffer", "logits")
OPTIMIZERS = ("adamw", "momentum", "sgd")
DEADLINE_S = 2.0
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Job:
    """What a ledger is filled for: a model as groups of shapes, and how it is trained.

    root: shapes of the parameters outside the blocks. blocks: per block, the shapes of its
    parameters; each block is a group of its own, and the root is one more. ranks: that share every
    parameter. tokens: of one rank's micro-batch. vocab: words that a logit is computed for.
    compute_bytes, reduce_bytes: of an element in compute and all-gather, and in the reduce-scatter;
    the shards stay fp32. optimizer: `adamw`, `momentum` (SGD with it) or `sgd` (without).
    reshard_after_forward: whether a block's whole weights go away once it has computed.
    """

    root: tuple[Shape, ...]
    blocks: tuple[tuple[Shape, ...], ...]
    ranks: int
    tokens: int
    vocab: int
    compute_bytes: int = 4
    reduce_bytes: int = 4
    optimizer: str = "adamw"
    reshard_after_forward: bool = True

    def __str__(self) -> str:
        same = len(set(self.blocks)) == 1
        blocks = f"{len(self.blocks)} × {_list(self.blocks[0])}" if same else " | ".join(map(_list, self.blocks))
        return (
            f"root {_list(self.root)}, blocks {blocks}, {self.ranks} ranks, {self.tokens} tokens of {self.vocab} "
            f"words, {self.compute_bytes} B computed, {self.reduce_bytes} B reduced, {self.optimizer}, "
            f"reshard_after_forward={self.reshard_after_forward}"
        )

    @property
    def groups(self) -> tuple[tuple[Shape, ...], ...]:
        """The shapes of every group, the root's first."""
        return (self.root, *self.blocks)

    @property
    def even(self) -> bool:
        """Whether the ranks divide the rows of every parameter."""
        return all(shape[0] % self.ranks == 0 for group in self.groups for shape in group)


def _list(shapes: tuple[Shape, ...]) -> str:
    return " ".join("(" + ", ".join(map(str, shape)) + ")" for shape in shapes)


def job_of(config: "ModelConfig", ranks: int, sequences: int, plan: "ShardingPlan | None" = None) -> Job:
    """The job of a `MiniLLM` that `plan` shards by blocks, `sequences` full contexts a rank, with AdamW.

    The model is built on the meta device: shapes without memory. Raises `ValueError` for a plan whose
    groups are not the blocks.
    """
    import torch

    from helpers.training.model import MiniLLM
    from helpers.training.plan import DTYPES, ShardingPlan

    plan = plan or ShardingPlan()
    if plan.wrap != "block" or not isinstance(plan.reshard_after_forward, bool):
        raise ValueError(f"the groups of this job are the blocks, which {plan} does not say")
    with torch.device("meta"):
        model = MiniLLM(config)
    blocks = tuple(tuple(tuple(each.shape) for each in block.parameters()) for block in model.blocks)
    root = tuple(tuple(each.shape) for name, each in model.named_parameters() if not name.startswith("blocks."))
    sizes = (DTYPES[plan.dtype].itemsize, DTYPES[plan.reduce_dtype].itemsize)
    tokens, reshard = sequences * config.context, bool(plan.reshard_after_forward)
    return Job(root, blocks, plan.shards(ranks), tokens, config.vocab, *sizes, reshard_after_forward=reshard)


def lines_counted(job: Job, cut: "Cut | None" = None) -> dict[str, int]:
    """Bytes of each line on the fullest rank, counted on tensors: the oracle of training.2.

    cut: from a parameter and the number of ranks, the piece of the first rank; `torch.chunk`'s unless
    given. Nothing here is a formula: pieces are cut, an optimizer makes its state, and whole groups
    are laid out. `tests/course/test_ledger_exercise.py` compares it with torch's own tracker.
    """
    import torch

    cut = cut or (lambda whole, ranks: whole.chunk(ranks)[0])
    computed, reduced = (_dtype(size) for size in (job.compute_bytes, job.reduce_bytes))
    pieces = [[cut(torch.zeros(shape), job.ranks) for shape in group] for group in job.groups]
    state = sum(piece.nbytes for group in pieces for piece in group)
    gathered = [_whole_bytes(group, job.ranks, computed) for group in pieces]
    inputs = [_whole_bytes(group, job.ranks, reduced) for group in pieces]
    logits = torch.empty(job.tokens, job.vocab, device="meta")
    return {
        "parameters": state,
        "gradients": state,
        "optimizer": _optimizer_bytes(job.optimizer, [piece for group in pieces for piece in group]),
        "unsharded group": gathered[0] + (max if job.reshard_after_forward else sum)(gathered[1:]),
        "reduce-scatter buffer": max(inputs),
        "logits": logits.nbytes,
    }


def _dtype(size: int):
    import torch

    return {2: torch.bfloat16, 4: torch.float32}[size]


def _whole_bytes(pieces: "list[Tensor]", ranks: int, dtype) -> int:
    """Bytes of a group that every rank has sent a piece of equal size to."""
    return sum(piece.to("meta", dtype).expand(ranks, *piece.shape).contiguous().nbytes for piece in pieces)


def _optimizer_bytes(name: str, pieces: "list[Tensor]") -> int:
    """Bytes that the optimizer keeps for `pieces` after its first step, without AdamW's step counters."""
    import torch

    weights = [torch.nn.Parameter(piece) for piece in pieces]
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    if name == "adamw":
        optimizer = torch.optim.AdamW(weights)
    else:
        optimizer = torch.optim.SGD(weights, momentum=0.9 if name == "momentum" else 0.0)
    optimizer.step()
    kept = [value for entry in optimizer.state.values() for key, value in entry.items() if key != "step"]
    return sum(value.nbytes for value in kept if value is not None)


def examine_fill(answer: Callable[[Job], dict[str, float]], seed: int) -> Finding | None:
    """The first job whose ledger `answer(job)` fills wrongly, and the line that is wrong."""
    return next((found for job in _jobs(seed) if (found := _examine_job(answer, job))), None)


def _jobs(seed: int) -> Iterator[Job]:
    """Small jobs first; each adds one thing to those before it."""
    first = Job(root=((3, 2),), blocks=(((9,),),), ranks=3, tokens=2, vocab=5)
    yield first
    yield (more := replace(first, blocks=(((6,), (3, 3)),) * 3))
    yield replace(more, reshard_after_forward=False)
    yield (mixed := replace(more, compute_bytes=2))
    yield replace(mixed, reduce_bytes=2)
    yield from (replace(more, optimizer=name) for name in OPTIMIZERS[1:])
    yield replace(more, blocks=(((6,),), ((6, 2),), ((3, 3),)))
    yield replace(more, root=((9, 4), (3, 2)))
    yield replace(first, root=((5, 2),), ranks=2)
    yield replace(first, blocks=(((5,), (2, 3)),) * 2, ranks=4)
    draw = random.Random(seed)
    for ranks in (2, 5, 8):
        yield _random_job(draw, ranks)


def _random_job(draw: random.Random, ranks: int) -> Job:
    shapes = lambda count: tuple(tuple(draw.randint(1, 12) for _ in range(draw.randint(1, 2))) for _ in range(count))
    return Job(
        root=shapes(2),
        blocks=tuple(shapes(3) for _ in range(draw.randint(2, 4))),
        ranks=ranks,
        tokens=draw.randint(1, 16),
        vocab=draw.randint(2, 40),
        compute_bytes=draw.choice((2, 4)),
        reduce_bytes=draw.choice((2, 4)),
        optimizer=draw.choice(OPTIMIZERS),
        reshard_after_forward=draw.random() < 0.7,
    )


def _examine_job(answer, job: Job) -> Finding | None:
    try:
        got = within(DEADLINE_S, lambda: answer(job))
    except TooLong:
        saw = f"{job}: nothing after {DEADLINE_S:g} s"
        return Finding("A ledger is arithmetic: it comes at once.", saw, Symptom.HANGS, 1)
    if finding := _form(got, job):
        return finding
    true = lines_counted(job)
    wrong = (line for line in LINES if not math.isclose(got[line], true[line], rel_tol=1e-9))
    return next((_explain(line, float(got[line]), true[line], job) for line in wrong), None)


def _form(got: object, job: Job) -> Finding | None:
    """A dict of numbers, with exactly the lines."""
    if not isinstance(got, dict):
        saw = f"{job}: something of type {type(got).__name__}"
        return Finding("A ledger is a dict from the name of a line to its bytes.", saw, Symptom.TYPE, 1)
    if set(got) != set(LINES):
        missing = ", ".join(line for line in LINES if line not in got) or "nothing"
        unknown = ", ".join(str(line) for line in got if line not in LINES) or "nothing"
        saw = f"{job}: {missing} is missing, {unknown} is unknown"
        return Finding(f"The lines are {', '.join(LINES)}.", saw, Symptom.SHAPE, 1)
    for line, value in got.items():
        if not isinstance(value, Real) or isinstance(value, bool):
            saw = f"{job}: {line} is of type {type(value).__name__}"
            return Finding("Every line is a number of bytes.", saw, Symptom.TYPE, 1)
        if math.isnan(value):
            return Finding("Every line is a number of bytes.", f"{job}: {line} is nan", Symptom.NAN, 1)
    return None


def _explain(line: str, got: float, true: int, job: Job) -> Finding:
    """What kind of mistake makes `got` out of `true`; an input that the ranks divide tells most."""
    saw = f"{job}: {line} is {got:g} B"
    for look in (_by_ranks, _by_groups, _by_size):
        if found := look(line, got, true, job):
            rule, symptom, hint = found
            return Finding(rule, saw, symptom, hint)
    if not job.even:
        rule = "Each parameter's rows are rounded up to a multiple of the ranks, one parameter at a time."
        return Finding(rule, saw, Symptom.TAIL, 3)
    return Finding("A line counts what it says, and all of it.", saw, Symptom.VALUE, 4)


def _by_ranks(line: str, got: float, true: int, job: Job) -> tuple[str, Symptom, int] | None:
    """Another number of rows on the rank."""
    if line == "logits":
        return None
    if line in STATE and got in (lines_counted(job, lambda whole, _: whole)[line], true * job.ranks):
        return "A rank keeps its part of weights, gradients and moments.", Symptom.NOT_SHARDED, 1
    if job.even and got == lines_counted(job, _one_row_more)[line]:
        return "Ranks that divide the rows leave none over.", Symptom.OFF_BY_ONE, 3
    return None


def _one_row_more(whole: "Tensor", ranks: int) -> "Tensor":
    return whole.new_zeros(len(whole) // ranks + 1, *whole.shape[1:])


def _by_groups(line: str, got: float, true: int, job: Job) -> tuple[str, Symptom, int] | None:
    """Groups that should be gone."""
    everything = {
        "unsharded group": lines_counted(replace(job, reshard_after_forward=False))["unsharded group"],
        "reduce-scatter buffer": sum(
            lines_counted(replace(job, root=group, blocks=((),)))["reduce-scatter buffer"] for group in job.groups
        ),
    }
    if got != everything.get(line):
        return None
    if line == "unsharded group":
        return "One block at a time is whole; it is freed before the next one comes.", Symptom.NOT_FREED, 4
    return "A group's buffer is freed once it is reduced: one, the largest, counts.", Symptom.NOT_FREED, 4


def _by_size(line: str, got: float, true: int, job: Job) -> tuple[str, Symptom, int] | None:
    """Bytes of another element type, or another unit."""
    factor = got / true if true else 0.0
    if factor in (0.5, 2.0) and 2 in (job.compute_bytes, job.reduce_bytes):
        rule = (
            "Shards and logits are fp32; whole weights have the compute dtype, a reduction's input the reduce dtype."
        )
        return rule, Symptom.DTYPE, 5
    units = [1 / scale for scale in (1e3, 1e6, 1e9, 2**10, 2**20, 2**30)]
    if any(math.isclose(factor, each) for each in (0.125, 0.25, 0.5, 2.0, 4.0, 8.0, *units)):
        return "A line is in bytes: elements times the bytes of each.", Symptom.CONSTANT_FACTOR, 2
    return None


EXERCISES = (
    Exercise(
        id="training.2",
        title="Fill the ledger",
        hints=(
            "Sort the lines first. Three are cut among the ranks. Two belong to whole groups: ranks do not shrink "
            "them. One belongs to the tokens. The result is a dict with the names of LINES.",
            "What training keeps is fp32: 4 bytes for a weight, 4 for its gradient, and 4 for each number that the "
            "optimizer remembers of it. How many does AdamW remember? SGD with momentum? Plain SGD?",
            "fully_shard cuts each parameter by itself. The fullest rank has the ceiling of rows / ranks of each: "
            "round first, then add up. A gathered parameter has that many rows from every rank.",
            "The root's weights are whole from forward to backward, and one block at a time joins them: plan for the "
            "largest. Without resharding none of them leaves. A reduction takes one group; the root is a group too.",
            "compute_bytes is for gathered weights only, reduce_bytes for the reduction's input only. "
            "Cross-entropy works in fp32 whatever the model computes in.",
        ),
        examine=examine_fill,
    ),
)
