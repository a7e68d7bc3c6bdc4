"""Plan a run: how a chosen plan for a large model is examined, by formula and against every other plan."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product
from typing import TYPE_CHECKING

from helpers.course.exercise import Exercise, Finding, Symptom
from helpers.course.exercises.deadline import TooLong, within
from helpers.measure import Quantity, predicted

if TYPE_CHECKING:
    from helpers.training.cluster import Accelerator, Network
    from helpers.training.collectives import Collective
    from helpers.training.model import ModelConfig
    from helpers.training.plan import ShardingPlan

DEADLINE_S = 4.0
SLACK = 1.05
FAST, SLOW = "8 × 400 Gb/s", "1 × 100 Gb/s"


@dataclass(frozen=True)
class Run:
    """What is asked for: a model, a cluster, and the batch of every step.

    model: a preset, as `70b`. ranks: GPUs, eight to a node. accelerator, network: names in
    `helpers.training.cluster`. batch: sequences of one step over all ranks, each a full context of
    tokens; a plan trains exactly these. headroom: the part of a GPU's memory that a plan leaves free.
    """

    model: str
    ranks: int
    accelerator: str
    network: str
    batch: int
    headroom: float = 0.1

    def __str__(self) -> str:
        return (
            f"{self.model} on {self.ranks} {self.accelerator}, {self.network}, {self.batch} sequences a step, "
            f"{self.headroom:.0%} of memory free"
        )

    @cached_property
    def config(self) -> "ModelConfig":
        """The model's shape."""
        from helpers.training.presets import load_preset

        return load_preset(self.model).model

    @cached_property
    def gpu(self) -> "Accelerator":
        """One GPU: `memory` in bytes, `achievable` in FLOP/s, `link` in B/s."""
        from helpers.training.cluster import ACCELERATORS, named

        return named(ACCELERATORS, self.accelerator)

    @cached_property
    def fabric(self) -> "Network":
        """What leaves a node: `node` in B/s."""
        from helpers.training.cluster import NETWORKS, named

        return named(NETWORKS, self.network)


@dataclass(frozen=True)
class Choice:
    """What you decide. Groups are the blocks, compute is bf16 and the reduction fp32 in any case.

    replicas: copies of the sharded model (HSDP); they divide the ranks. recompute: activation
    checkpointing of each block. reshard_after_forward: free a block's weights after forward and gather
    them again in backward. sequences: of one rank's micro-batch. micro_batches: of one step. Every
    rank reads data of its own, with replicas too.
    """

    replicas: int = 1
    recompute: bool = False
    reshard_after_forward: bool = True
    sequences: int = 1
    micro_batches: int = 1

    @property
    def plan(self) -> "ShardingPlan":
        """The plan that `simulate` and `shard` take."""
        from helpers.training.plan import ShardingPlan

        return ShardingPlan(
            dtype="bf16",
            replicas=self.replicas,
            recompute=self.recompute,
            reshard_after_forward=self.reshard_after_forward,
        )


@dataclass(frozen=True)
class Outlook:
    """One step of a choice, by formula: nothing ran, nothing was timed.

    memory: bytes of a rank at the fullest moment. compute: seconds of all FLOP at the GPU's achievable
    rate. communication: of all collectives, one after another. exposed: of the first gather and the
    last reduction, which nothing can hide. mfu: model FLOP over seconds and peak, 0 to 1.
    """

    memory: float
    compute: float
    communication: float
    exposed: float
    mfu: float

    @property
    def seconds(self) -> float:
        """The step when all other communication hides behind compute, or the other way round."""
        return max(self.compute, self.communication) + self.exposed

    @property
    def seconds_without_overlap(self) -> float:
        """The step when nothing hides."""
        return self.compute + self.communication

    def quantities(self) -> dict[str, Quantity]:
        """The numbers of a table's row, stamped predicted."""
        return {
            "memory": predicted(self.memory, "B"),
            "compute": predicted(self.compute, "s"),
            "communication": predicted(self.communication, "s"),
            "step": predicted(self.seconds, "s"),
            "MFU": predicted(100 * self.mfu, "%"),
        }


@cache
def outlook(run: Run, choice: Choice) -> Outlook:
    """Memory and time of one step of `run` with `choice`; raises `PlanError` when replicas do not divide ranks.

    Memory is the peak of `predict_ledger`, and on top the gradients that wait between micro-batches (at most a
    block's share too much).
    Collectives are those of `predict_traffic`. `tests/course/test_planning.py` compares both with
    simulated ranks. Time is as `helpers.training.cluster.estimate` has it, except for the replicas'
    all-reduce, see `seconds_of`.
    """
    from helpers.training.mfu import flops_per_token, recomputed_flops_per_token

    config, tokens = run.config, choice.sequences * choice.micro_batches * run.config.context
    useful = tokens * flops_per_token(config)
    again = tokens * recomputed_flops_per_token(config) if choice.recompute else 0
    compute = (useful + again) / run.gpu.achievable
    collectives = collectives_of(run, choice)
    seconds = [seconds_of(entry, run, choice) for entry in collectives]
    exposed = sum(each / entry.count for entry, each in zip(collectives, seconds) if entry.kind != "all_reduce")
    step = max(compute, sum(seconds)) + exposed
    return Outlook(memory_of(run, choice), compute, sum(seconds), exposed, useful / step / run.gpu.peak)


def memory_of(run: Run, choice: Choice) -> float:
    """Bytes of a rank at the fullest moment of a step."""
    from helpers.training.ledger_formulas import Share, elements_of, peak_bytes

    shards = choice.plan.shards(run.ranks)
    peak = peak_bytes(run.config, choice.plan, Share(choice.sequences, shards, fused_norms=True))
    waiting = 4 * elements_of(run.config, shards).total / shards if choice.micro_batches > 1 else 0
    return peak + waiting


def collectives_of(run: Run, choice: Choice) -> "tuple[Collective, ...]":
    """The collectives of one step of a rank; every micro-batch gathers and reduces, replicas add up once."""
    from helpers.training.collectives import predict_traffic
    from helpers.training.ledger_formulas import elements_of
    from helpers.training.loop import Accumulation

    shards = choice.plan.shards(run.ranks)
    sizes = elements_of(run.config, shards)
    groups = [sizes.root] + [sizes.block] * sizes.blocks
    return predict_traffic(groups, choice.plan, shards, Accumulation(choice.micro_batches))


def seconds_of(entry: "Collective", run: Run, choice: Choice) -> float:
    """Seconds of all calls of one kind, by the ring formulas of `helpers.training.cluster`."""
    from helpers.training import cluster

    apart = cluster.distance(entry, choice.plan, run.ranks // choice.replicas)
    return cluster.collective_seconds(entry, run.gpu, run.fabric, apart)


def legal_choices(run: Run) -> Iterator[Choice]:
    """Every choice that trains exactly the batch of `run`: none when the ranks do not divide it."""
    if run.batch % run.ranks:
        return
    share = run.batch // run.ranks
    switches = product(_divisors(run.ranks), (False, True), (True, False), _divisors(share))
    for replicas, recompute, reshard, sequences in switches:
        yield Choice(replicas, recompute, reshard, sequences, share // sequences)


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


@cache
def fastest(run: Run) -> Outlook | None:
    """The shortest step among all choices that fit, by brute force: the oracle of training.16; None without any."""
    outlooks = [outlook(run, choice) for choice in legal_choices(run)]
    return min((each for each in outlooks if each.memory <= _room(run)), key=lambda each: each.seconds, default=None)


def _room(run: Run) -> float:
    return (1 - run.headroom) * run.gpu.memory


def examine_plan(answer: Callable[[Run], Choice | None], seed: int) -> Finding | None:
    """The first run for which `answer(run)` is not a plan that fits, trains the batch and is fast."""
    return next((found for run in _runs(seed) if (found := _examine_run(answer, run))), None)


def _runs(seed: int) -> Iterator[Run]:
    """One node first; then slow networks, a larger model, and runs that nobody can plan."""
    yield Run("8b", 8, "H100", FAST, 8)
    yield Run("8b", 8, "H100", FAST, 64)
    yield Run("8b", 24, "H100", SLOW, 96)
    yield Run("70b", 64, "H100", FAST, 256)
    yield Run("70b", 128, "H100", SLOW, 512)
    yield Run("8b", 32, "H200", SLOW, 128)
    yield Run("70b", 8, "H100", FAST, 64)
    yield Run("8b", 64, "H100", FAST, 100)
    draw = random.Random(seed)
    for model, worlds in (("8b", (16, 40, 64)), ("70b", (64, 96, 256)), ("70b", (128, 192, 512))):
        ranks = draw.choice(worlds)
        gpu, network = draw.choice(("H100", "H200", "B200")), draw.choice((FAST, "8 × 200 Gb/s", SLOW))
        yield Run(model, ranks, gpu, network, ranks * draw.choice((2, 4, 6)), draw.choice((0.05, 0.1, 0.2)))


def _examine_run(answer, run: Run) -> Finding | None:
    best = fastest(run)  # first, so that the time for the answer does not go into imports
    try:
        choice = within(DEADLINE_S, lambda: answer(run))
    except TooLong:
        saw = f"{run}: nothing after {DEADLINE_S:g} s"
        return Finding("A plan is found in seconds, or refused.", saw, Symptom.HANGS, 3)
    if choice is None:
        rule = "A run is refused only when no choice trains its batch within the memory."
        return Finding(rule, f"{run}: refused", Symptom.VALUE, 3) if best else None
    looks = (_form, _batch, _memory, _time)
    return next((found for look in looks if (found := look(run, choice))), None)


def _form(run: Run, choice: Choice) -> Finding | None:
    """A `Choice` of whole numbers from 1 and two switches, with replicas that the ranks can form."""
    if not isinstance(choice, Choice):
        saw = f"{run}: something of type {type(choice).__name__}"
        return Finding("A plan is a Choice, or None.", saw, Symptom.TYPE, 1)
    kinds = {"recompute": bool, "reshard_after_forward": bool}
    for name, value in vars(choice).items():
        if type(value) is not kinds.get(name, int):
            saw = f"{run}: {name} is {value!r}"
            return Finding("Counts are whole numbers, switches are True or False.", saw, Symptom.TYPE, 1)
        if value < 1 and name not in kinds:
            return Finding("Counts start at 1.", f"{run}: {name} is {value}", Symptom.INTERFACE, 1)
    if run.ranks % choice.replicas:
        return Finding("Replicas divide the ranks.", f"{run}: {choice.replicas} replicas", Symptom.SHAPE, 1)
    return None


def _batch(run: Run, choice: Choice) -> Finding | None:
    """Exactly the sequences that were asked for."""
    trained = run.ranks * choice.sequences * choice.micro_batches
    if trained == run.batch:
        return None
    rule = "All ranks together train exactly the batch of the run in one step."
    saw = f"{run}: {choice.sequences} sequences × {choice.micro_batches} micro-batches a rank are {trained}"
    larger, smaller = max(trained, run.batch), min(trained, run.batch)
    return Finding(rule, saw, Symptom.VALUE if larger % smaller else Symptom.CONSTANT_FACTOR, 2)


def _memory(run: Run, choice: Choice) -> Finding | None:
    """The fullest moment leaves the headroom free."""
    needed = outlook(run, choice).memory
    if needed <= _room(run):
        return None
    part = "does not fit at all" if needed > run.gpu.memory else "leaves too little free"
    saw = f"{run}: {_told(choice)} needs {needed / 1e9:.1f} GB of {run.gpu.memory / 1e9:.0f}, which {part}"
    return Finding("The fullest moment of a step leaves the headroom free.", saw, Symptom.MEMORY, 3)


def _time(run: Run, choice: Choice) -> Finding | None:
    """About as fast as the fastest choice that fits; why it is slower is the symptom."""
    mine, best = outlook(run, choice), fastest(run)
    if mine.seconds <= SLACK * best.seconds:
        return None
    saw = f"{run}: {_told(choice)} computes for {mine.compute:.2f} s and communicates for {mine.communication:.2f} s"
    plain = replace(choice, recompute=False)
    if choice.recompute and outlook(run, plain).memory <= _room(run) and mine.compute > mine.communication:
        return Finding("Nothing is computed twice where memory allows to keep it.", saw, Symptom.VALUE, 4)
    rule = f"The step is within {SLACK - 1:.0%} of the fastest choice that fits."
    if mine.communication > mine.compute:
        return Finding(rule, saw, Symptom.TRAFFIC, 5)
    return Finding(rule, saw, Symptom.VALUE, 4)


def _told(choice: Choice) -> str:
    """The choice in short words."""
    kept = "" if choice.reshard_after_forward else ", weights kept"
    return (
        f"{choice.replicas} replica{'s' * (choice.replicas != 1)}{', recomputed' * choice.recompute}{kept}, "
        f"{choice.micro_batches} × {choice.sequences}"
    )


EXERCISES = (
    Exercise(
        id="training.16",
        title="Plan a run",
        hints=(
            "Return Choice(replicas, recompute, reshard_after_forward, sequences, micro_batches), or None. Replicas "
            "divide the ranks; // keeps counts whole where / makes floats of them.",
            "Every rank reads data of its own, so a rank's share of the batch does not depend on the replicas, and "
            "sequences times micro_batches is that share. What if the ranks do not divide the batch?",
            "outlook(run, choice).memory is the fullest moment; compare it with run.gpu.memory less the headroom. "
            "When nothing fits, say so: None. And outlook is quick: a thousand choices take less than a second.",
            "Recomputing costs a third more FLOP and buys memory. Where the memory is not needed for anything, it "
            "buys nothing. Let outlook(run, choice).seconds decide.",
            "Bytes fall in three ways: fewer and larger micro-batches gather less often; copies that stay inside a "
            "node gather over its links; weights that are kept are gathered once. All three cost memory. "
            "Try all numbers of replicas that divide the ranks, not the powers of two only.",
        ),
        examine=examine_plan,
    ),
)
