"""One rank of a cluster that is not there: the real sharding code on fake tensors and a fake process group."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from helpers.errors import CourseError
from helpers.training.collectives import Collective, Recorder, merged
from helpers.training.ledger import Ledger
from helpers.training.ledger_formulas import Share, predict_ledger
from helpers.training.model import MiniLLM, ModelConfig
from helpers.training.plan import ShardingPlan, shard
from helpers.training.tracker import Counts, fused_norms, track_step

FEW = (4, 5)


class SimulationError(CourseError):
    """A simulation inside a real process group, or of a cluster that cannot be."""


@dataclass(frozen=True)
class Simulation:
    """One rank of `ranks`, counted and not timed.

    memory: bytes by (phase, category), see `track_step`. collectives: of one step of this rank.
    blocks: how many blocks were really built; the rest is the line through two sizes.
    """

    config: ModelConfig
    plan: ShardingPlan
    ranks: int
    sequences: int
    memory: Counts
    collectives: tuple[Collective, ...]
    blocks: tuple[int, ...]

    @property
    def peak(self) -> int:
        """Bytes of the rank at the fullest moment."""
        return self.memory["peak", "total"]

    def ledger(self) -> Ledger:
        """Prediction and count side by side."""
        share = Share(self.sequences, self.plan.shards(self.ranks), fused_norms=True)
        return predict_ledger(self.config, self.plan, share).filled(tracked=self.memory)


@contextmanager
def fake_cluster(ranks: int) -> Iterator[None]:
    """A process group of `ranks` in which this process is rank 0 and no other exists.

    Collectives return at once and move nothing. Raises `SimulationError` when a group is there already.
    """
    if dist.is_initialized():
        raise SimulationError(
            "this process is in a process group already",
            where="fake_cluster",
            mend="simulate outside of Ranks and torchrun, in the notebook itself",
        )
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def simulate(
    config: ModelConfig, plan: ShardingPlan, ranks: int, sequences: int, *, every_block: bool = False
) -> Simulation:
    """Run one step of one rank of `ranks` on fake tensors: any model, in seconds, in little memory.

    sequences: of one rank's micro-batch. The blocks of a transformer are alike, so two small numbers
    of them are built, and every count is continued along the line through both; with every_block the
    whole model is built, which proves the line (`tests/training/test_simulate.py`).
    Raises `PlanError` when the ranks do not fit the plan, `SimulationError` inside a process group.
    """
    if every_block or config.blocks <= FEW[1]:
        memory, collectives = _count(config, plan, ranks, sequences)
        return Simulation(config, plan, ranks, sequences, memory, collectives, (config.blocks,))
    few, more = (_count(replace(config, blocks=blocks), plan, ranks, sequences) for blocks in FEW)
    steps = config.blocks - FEW[0]
    memory = {
        key: few[0].get(key, 0) + steps * (more[0].get(key, 0) - few[0].get(key, 0)) for key in {**few[0], **more[0]}
    }
    return Simulation(config, plan, ranks, sequences, memory, _continued(few[1], more[1], steps), FEW)


def _continued(few: tuple[Collective, ...], more: tuple[Collective, ...], steps: int) -> tuple[Collective, ...]:
    """The collectives `steps` blocks beyond `few`: they grow with each block as from `few` to `more`."""
    start = {(entry.kind, entry.ranks): entry for entry in few}
    found = []
    for entry in more:
        first = start.get((entry.kind, entry.ranks), replace(entry, count=0, bytes=0))
        found.append(
            replace(
                entry,
                count=first.count + steps * (entry.count - first.count),
                bytes=first.bytes + steps * (entry.bytes - first.bytes),
            )
        )
    return merged(found)


def _count(config: ModelConfig, plan: ShardingPlan, ranks: int, sequences: int):
    plan.shards(ranks)
    with fake_cluster(ranks):
        mesh = plan.make_mesh("cpu", ranks)
        with torch.device("meta"):
            model = MiniLLM(config)
        shard(model, mesh, plan)
        with FakeTensorMode(allow_non_fake_inputs=True):
            model.to_empty(device="cpu")
            optimizer = torch.optim.AdamW(model.parameters(), foreach=False)  # foreach would inflate its state
            tokens = torch.zeros(sequences, config.context, dtype=torch.long)
            with fused_norms(model):
                with Recorder() as recorder:
                    model(tokens).float().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                memory = track_step(model, optimizer, tokens)
        return memory, recorder.collectives
