"""A step's time on a cluster that is not there: bytes and FLOP of a simulation over named machines' rates."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from helpers.errors import CourseError
from helpers.measure import Quantity, simulated
from helpers.training.collectives import Collective
from helpers.training.mfu import flops_per_token, recomputed_flops_per_token
from helpers.training.plan import ShardingPlan
from helpers.training.simulate import Simulation
from helpers.training.traffic import sent_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GIB, NODE = 2**30, 8
HOW = "fake ranks, ring formulas"
BASE_S, HOP_S, NODE_HOP_S = 6.6e-6, 0.6e-6, 2.7e-6
"""Seconds of a collective's start, of a hop inside a node, and of one between nodes: the constants of
torch's own cost model, torch/distributed/tensor/_collective_utils.py in 2.13."""


class ClusterError(CourseError):
    """A GPU or a network that is not in the table."""


@dataclass(frozen=True)
class Accelerator:
    """A GPU as training sees it, eight to a node.

    peak: dense bf16 FLOP/s with fp32 accumulation, at boost clock. achievable: the fastest matrix
    product that was measured on it, FLOP/s. memory: bytes. link: B/s to the others in the node, each
    way. Peaks and memory are the makers' datasheets; `achievable` is the MAMF table of S. Bekman,
    "Machine Learning Engineering", read 2026-08.
    """

    name: str
    peak: float
    achievable: float
    memory: float
    link: float


@dataclass(frozen=True)
class Network:
    """What leaves a node: B/s of all its adapters together, each way, by the adapters' line rate."""

    name: str
    node: float


ACCELERATORS = {
    gpu.name: gpu
    for gpu in (
        Accelerator("A100", 312e12, 271e12, 80e9, 300e9),
        Accelerator("H100", 989e12, 795e12, 80e9, 450e9),
        Accelerator("H200", 989e12, 795e12, 141e9, 450e9),
        Accelerator("B200", 2250e12, 1745e12, 180e9, 900e9),
    )
}
NETWORKS = {
    network.name: network
    for network in (
        Network("8 × 400 Gb/s", 8 * 50e9),
        Network("8 × 200 Gb/s", 8 * 25e9),
        Network("1 × 100 Gb/s", 12.5e9),
    )
}


@dataclass(frozen=True)
class Estimate:
    """One step by formula. Every number is an estimate: nothing was timed.

    compute: seconds of all FLOP at the achievable rate. communication: of all collectives, one after
    another. exposed: of the first gather and the last reduction, which nothing can hide. seconds: the
    longer of compute and communication, and what is exposed: the best that overlap can do. mfu: model
    FLOP over seconds and peak. fits: whether the peak of memory does.
    """

    simulation: Simulation
    accelerator: Accelerator
    network: Network
    compute: float
    communication: float
    exposed: float
    mfu: float
    fits: bool

    @property
    def seconds(self) -> float:
        """The step with perfect overlap."""
        return max(self.compute, self.communication) + self.exposed

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all ranks that read different data, per second."""
        plan = self.simulation.plan
        readers = self.simulation.ranks // plan.tensor_parallel
        return readers * self.simulation.sequences * self.simulation.config.context / self.seconds

    def quantities(self) -> dict[str, Quantity]:
        """The numbers of a table's row, stamped simulated."""
        return {
            "memory": simulated(self.simulation.peak, "B", HOW),
            "compute": simulated(self.compute, "s", HOW),
            "communication": simulated(self.communication, "s", HOW),
            "step": simulated(self.seconds, "s", HOW),
            "MFU": simulated(100 * self.mfu, "%", HOW),
        }


def named(table: dict, name: str):
    """The entry called `name`; `ClusterError` lists those that exist."""
    if name not in table:
        raise ClusterError(f"there is no {name!r}", where="cluster tables", mend=f"use one of {', '.join(table)}")
    return table[name]


def estimate(simulation: Simulation, accelerator: str, network: str) -> Estimate:
    """The time of the simulated step on `accelerator`s, eight to a node, joined by `network`.

    Raises `ClusterError` for a name that is not in the tables.
    """
    gpu, fabric = named(ACCELERATORS, accelerator), named(NETWORKS, network)
    config, plan = simulation.config, simulation.plan
    tokens = simulation.sequences * config.context
    model_flop = tokens * flops_per_token(config) / plan.tensor_parallel
    again = tokens * recomputed_flops_per_token(config) / plan.tensor_parallel if plan.recompute else 0.0
    compute = (model_flop + again) / gpu.achievable
    shards = plan.shards(simulation.ranks)
    apart = [distance(entry, plan, shards) for entry in simulation.collectives]
    seconds = [collective_seconds(entry, gpu, fabric, far) for entry, far in zip(simulation.collectives, apart)]
    exposed = _exposed(simulation.collectives, seconds)
    step = max(compute, sum(seconds)) + exposed
    fits = simulation.peak <= gpu.memory
    return Estimate(simulation, gpu, fabric, compute, sum(seconds), exposed, model_flop / step / gpu.peak, fits)


def collective_seconds(entry: Collective, gpu: Accelerator, network: Network, apart: int) -> float:
    """Seconds of all calls of one kind: α for each hop of the ring, and its bytes at the narrowest link.

    apart: the distance of two neighbours of the ring in the line of ranks, 1 for ranks side by side.
    As many rings lie side by side; those that leave a node share its adapters.
    """
    nodes = math.ceil(apart * entry.ranks / NODE)
    hops = entry.ranks - 1
    between = min(hops, nodes - 1)
    latency = BASE_S + (hops - between) * HOP_S + between * NODE_HOP_S
    width = min(gpu.link, network.node / min(apart, NODE)) if nodes > 1 else gpu.link
    return entry.count * latency + sent_bytes(entry, "nccl") / width


def distance(entry: Collective, plan: ShardingPlan, shards: int) -> int:
    """How far apart the ranks of a collective are: tensor ranks are neighbours, then shards, then replicas.

    All-reduces over as many replicas as tensor ranks are counted as one kind, and taken for the slower.
    """
    if entry.kind == "all_reduce" and entry.ranks == plan.replicas > 1:
        return shards * plan.tensor_parallel
    return 1 if entry.kind == "all_reduce" else plan.tensor_parallel


def _exposed(collectives: Sequence[Collective], seconds: Sequence[float]) -> float:
    """One gather and one reduction of average size: the step's first and last."""
    kinds = ("all_gather", "reduce_scatter")
    return sum(time / entry.count for entry, time in zip(collectives, seconds) if entry.kind in kinds)


def scaling_figure(estimates: Sequence[Estimate]) -> "Figure":
    """Compute and communication over the ranks, and the MFU that is left; x is logarithmic."""
    from matplotlib import pyplot

    ranks = [estimate.simulation.ranks for estimate in estimates]
    places = range(len(ranks))
    figure, (times, shares) = pyplot.subplots(1, 2, figsize=(9.5, 3.6), layout="constrained")
    bars = (("compute", "#4c78a8", "", -0.2), ("communication", "#f2a93b", "///", 0.2))
    for name, color, hatch, shift in bars:
        heights = [getattr(estimate, name) for estimate in estimates]
        where = [place + shift for place in places]
        times.bar(where, heights, 0.38, label=name, color=color, hatch=hatch, edgecolor="white")
    times.set(xlabel="ranks", ylabel="seconds of one step", title="what a step has to do")
    shares.plot(places, [100 * estimate.mfu for estimate in estimates], "o-", color="#333333")
    for place, estimate in zip(places, estimates):
        label = f"{100 * estimate.mfu:.0f}" if estimate.fits else f"{100 * estimate.mfu:.0f}, does not fit"
        shares.annotate(
            label, (place, 100 * estimate.mfu), (0, 7), textcoords="offset points", ha="center", fontsize=8
        )
    shares.set(
        xlabel="ranks", ylabel="MFU in % of the dense bf16 peak", ylim=(0, 100), title="what is left of the peak"
    )
    for axes in (times, shares):
        axes.set_xticks(list(places), [str(count) for count in ranks])
        axes.grid(axis="y", alpha=0.3)
    times.legend()
    return figure
