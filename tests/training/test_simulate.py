"""The simulated rank is the real one: counts of four real ranks, and of the whole model, are its oracles."""

import dataclasses

import pytest
import torch.distributed as dist

from helpers.training.cluster import (
    ACCELERATORS,
    NETWORKS,
    ClusterError,
    collective_seconds,
    distance,
    estimate,
    scaling_figure,
)
from helpers.training.collectives import Collective, Recorder
from helpers.training.loop import Trainer
from helpers.training.mfu import flops_per_token
from helpers.training.plan import ShardingPlan
from helpers.training.plan_guards import PlanError
from helpers.training.presets import load_preset
from helpers.training.ranks import Ranks
from helpers.training.simulate import SimulationError, fake_cluster, simulate
from helpers.training.tracker import track_step

TINY, SMALL, LARGE, HUGE = (load_preset(name).model for name in ("tiny", "small", "8b", "70b"))
BF16 = ShardingPlan(dtype="bf16")
AGAIN = ShardingPlan(dtype="bf16", recompute=True)


def real(plan):
    trainer = Trainer(load_preset("tiny"), plan.make_mesh("cpu", 4), plan)
    trainer.step()
    with Recorder() as recorder:
        trainer.backward()
    trainer.optimizer.zero_grad()
    return recorder.collectives, track_step(trainer.model, trainer.optimizer, trainer.batches.at(0).inputs)


@pytest.mark.parametrize("plan", [ShardingPlan(), ShardingPlan(replicas=2), ShardingPlan(tensor_parallel=2)])
def test_a_simulated_rank_counts_what_a_real_one_counts(plan):
    sequences = 4 if plan.tensor_parallel == 1 else 8
    found = simulate(TINY, plan, 4, sequences)
    with Ranks(4) as ranks:
        collectives, memory = ranks.run(real, plan)[0]
    assert found.collectives == collectives
    for key in [
        ("between steps", "parameters"),
        ("between steps", "optimizer"),
        ("after forward", "unsharded group"),
    ]:
        assert found.memory[key] == memory[key]
    assert found.peak < memory["peak", "total"], "a fused norm keeps less than the CPU's composed one"


@pytest.mark.parametrize(
    ("config", "plan"),
    [
        (SMALL, BF16),
        (SMALL, AGAIN),
        (SMALL, ShardingPlan(wrap="linear")),
        (SMALL, ShardingPlan(dtype="bf16", replicas=2)),
    ],
    ids=["block", "recompute", "linear", "replicas"],
)
def test_the_line_through_two_sizes_is_the_whole_model(config, plan):
    short = simulate(config, plan, 8, 1)
    whole = simulate(config, plan, 8, 1, every_block=True)
    assert short.memory == whole.memory and short.collectives == whole.collectives
    assert (short.blocks, whole.blocks) == ((4, 5), (12,))


@pytest.mark.parametrize(
    ("config", "plan", "ranks"), [(SMALL, BF16, 8), (LARGE, BF16, 64), (LARGE, AGAIN, 1024), (HUGE, AGAIN, 1024)]
)
def test_the_ledger_of_large_models_balances(config, plan, ranks):
    ledger = simulate(config, plan, ranks, 1).ledger()
    ledger.require()
    assert sum(line.predicted is not None for line in ledger.lines) >= 10


def test_the_peak_never_falls_below_what_is_held():
    found = simulate(LARGE, AGAIN, 4096, 1)
    held = found.memory["between steps", "parameters"] + found.memory["between steps", "optimizer"]
    assert held < found.peak


def test_a_simulation_leaves_no_process_group():
    simulate(TINY, ShardingPlan(), 8, 1)
    assert not dist.is_initialized()
    with fake_cluster(2), pytest.raises(SimulationError, match="in a process group already"):
        simulate(TINY, ShardingPlan(), 8, 1)


def test_a_plan_that_does_not_fit_the_ranks_is_refused_before_anything_runs():
    with pytest.raises(PlanError, match="10 ranks are not a multiple"):
        simulate(TINY, ShardingPlan(replicas=4), 10, 1)
    assert not dist.is_initialized()


def test_one_step_by_hand():
    """8 ranks in one node: every number from the table and the ring formula, written out."""
    found = estimate(simulate(LARGE, AGAIN, 8, 1), "H100", "8 × 400 Gb/s")
    gather, scatter = found.simulation.collectives
    assert (gather.count, scatter.count) == (2 * 33 - 1, 33)
    wire = 7 / 8 * (gather.bytes + scatter.bytes) / 450e9
    latency = (65 + 33) * (6.6e-6 + 7 * 0.6e-6)
    assert found.communication == pytest.approx(wire + latency)
    assert found.mfu == pytest.approx(LARGE.context * flops_per_token(LARGE) / found.seconds / 989e12)
    assert found.compute < found.seconds and found.fits


def test_a_slower_network_costs_and_more_ranks_never_help_the_wire():
    fast, slow = ACCELERATORS["H100"], NETWORKS["1 × 100 Gb/s"]
    near, far = (Collective("all_gather", ranks, 1, 10**9) for ranks in (8, 64))
    wide = NETWORKS["8 × 400 Gb/s"]
    assert collective_seconds(near, fast, slow, 1) == collective_seconds(near, fast, wide, 1)
    assert collective_seconds(far, fast, slow, 1) > 20 * collective_seconds(far, fast, wide, 1)
    assert collective_seconds(far, fast, wide, 1) > collective_seconds(near, fast, wide, 1)


def test_replicas_of_one_shard_share_the_adapters_of_their_nodes():
    """Two copies, each a node of 8: eight rings of two ranks leave each node through the same adapters."""
    gpu, network = ACCELERATORS["H100"], NETWORKS["1 × 100 Gb/s"]
    entry, plan = Collective("all_reduce", 2, 1, 10**9), ShardingPlan(replicas=2)
    assert distance(entry, plan, 8) == 8
    across = collective_seconds(entry, gpu, network, 8)
    assert across == pytest.approx(10**9 / (12.5e9 / 8) + 6.6e-6 + 2.7e-6)
    assert collective_seconds(entry, gpu, network, 4) == pytest.approx(10**9 / 450e9 + 6.6e-6 + 0.6e-6)


def test_tensor_ranks_are_neighbours_and_their_shards_lie_apart():
    plan = ShardingPlan(tensor_parallel=2)
    assert distance(Collective("all_reduce", 2, 1, 8), plan, 8) == 1
    assert distance(Collective("all_gather", 8, 1, 8), plan, 8) == 2


def test_unknown_machines_are_refused():
    found = simulate(TINY, ShardingPlan(), 8, 1)
    for names in (("H1000", "8 × 400 Gb/s"), ("H100", "carrier pigeon")):
        with pytest.raises(ClusterError, match="there is no"):
            estimate(found, *names)


def test_the_scaling_figure_says_what_does_not_fit():
    fits = estimate(simulate(TINY, ShardingPlan(), 8, 1), "H100", "8 × 400 Gb/s")
    figure = scaling_figure([fits, dataclasses.replace(fits, fits=False)])
    words = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert any("does not fit" in word for word in words)
