"""The outlook of training.16 is what simulated ranks count, and its time what the cluster's formulas give."""

import math
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from helpers.course.exercise import Symptom
from helpers.course.exercises.training.planning import (
    FAST,
    SLOW,
    Choice,
    Run,
    collectives_of,
    examine_plan,
    fastest,
    legal_choices,
    memory_of,
    outlook,
    seconds_of,
)
from helpers.training.cluster import estimate
from helpers.training.collectives import Collective
from helpers.training.ledger_formulas import elements_of
from helpers.training.model import MiniLLM
from helpers.training.plan import ShardingPlan, shard
from helpers.training.plan_guards import PlanError
from helpers.training.presets import load_preset
from helpers.training.simulate import fake_cluster, simulate
from helpers.training.tracker import fused_norms, track_step

NODE = Run("8b", 8, "H100", FAST, 8)
CASES = {
    "8b kept": (NODE, Choice()),
    "8b replicas": (replace(NODE, ranks=24, batch=48), Choice(3, True, False, 2, 1)),
    "70b": (Run("70b", 64, "H100", FAST, 64), Choice(1, True)),
}


@pytest.mark.parametrize("name", CASES)
def test_memory_collectives_and_time_are_those_of_a_simulated_rank(name):
    run, choice = CASES[name]
    rank = simulate(run.config, choice.plan, run.ranks, choice.sequences)
    assert memory_of(run, choice) == pytest.approx(rank.peak, rel=0.01)
    assert collectives_of(run, choice) == rank.collectives
    by_cluster, mine = estimate(rank, run.accelerator, run.network), outlook(run, choice)
    assert mine.compute == pytest.approx(by_cluster.compute)
    if choice.replicas == 1:
        assert mine.seconds == pytest.approx(by_cluster.seconds)
        assert mine.mfu == pytest.approx(by_cluster.mfu)


def tracked_peak(config, plan, ranks, waiting):
    """The peak of a step on fake tensors, with or without the gradients of a micro-batch before it."""
    with fake_cluster(ranks):
        mesh = plan.make_mesh("cpu", ranks)
        with torch.device("meta"):
            model = MiniLLM(config)
        shard(model, mesh, plan)
        with FakeTensorMode(allow_non_fake_inputs=True):
            model.to_empty(device="cpu")
            optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
            tokens = torch.zeros(1, config.context, dtype=torch.long)
            with fused_norms(model):
                model(tokens).float().sum().backward()
                optimizer.step()
                if not waiting:
                    optimizer.zero_grad()
                return track_step(model, optimizer, tokens)["peak", "total"]


def test_gradients_wait_between_micro_batches():
    config, plan = load_preset("tiny").model, ShardingPlan(dtype="bf16")
    alone, second = (tracked_peak(config, plan, 4, waiting) for waiting in (False, True))
    sizes = elements_of(config, 4)
    assert sizes.total - sizes.block <= second - alone <= sizes.total  # 4 bytes each on 4 ranks
    once, twice = Choice(recompute=True), Choice(recompute=True, micro_batches=2)
    expected = 4 * elements_of(NODE.config, 8).total / 8
    assert memory_of(NODE, twice) - memory_of(NODE, once) == pytest.approx(expected)


def test_micro_batches_gather_again_and_replicas_add_up_once():
    run = replace(NODE, ranks=16)
    once, twice = (
        {entry.kind: entry for entry in collectives_of(run, Choice(replicas=2, micro_batches=count))}
        for count in (1, 2)
    )
    assert twice["all_gather"].bytes == 2 * once["all_gather"].bytes
    assert twice["reduce_scatter"].count == 2 * once["reduce_scatter"].count
    assert twice["all_reduce"] == once["all_reduce"]


def test_replicas_in_other_nodes_share_the_adapters():
    """Two replicas of eight shards: eight rings of two leave each node, so a rank has an eighth of it."""
    entry = Collective("all_reduce", 2, 1, 10**9)
    across = seconds_of(entry, replace(NODE, ranks=16, network=SLOW), Choice(replicas=2))
    assert across == pytest.approx(10**9 / (12.5e9 / 8) + 6.6e-6 + 2.7e-6)
    inside = seconds_of(entry, NODE, Choice(replicas=2))
    assert inside == pytest.approx(10**9 / 450e9 + 6.6e-6 + 0.6e-6)


def test_legal_choices_are_all_that_train_the_batch():
    run = replace(NODE, batch=48)
    found = list(legal_choices(run))
    assert len(set(found)) == len(found) == 4 * 2 * 2 * 4  # divisors of 8 ranks, two switches, divisors of 6
    assert all(run.ranks * each.sequences * each.micro_batches == run.batch for each in found)
    assert not list(legal_choices(replace(run, batch=50)))


def test_the_fastest_fits_and_nothing_that_fits_is_faster():
    run = Run("8b", 24, "H100", SLOW, 96)
    best = fastest(run)
    fitting = [outlook(run, choice) for choice in legal_choices(run)]
    fitting = [each for each in fitting if each.memory <= 0.9 * 80e9]
    assert best in fitting and all(best.seconds <= each.seconds for each in fitting)
    assert fastest(Run("70b", 8, "H100", FAST, 64)) is None


def test_replicas_that_do_not_divide_the_ranks_are_refused():
    with pytest.raises(PlanError, match="8 ranks are not a multiple of 3 replicas"):
        outlook(NODE, Choice(replicas=3))


def test_quantities_are_stamped_predicted():
    found = outlook(NODE, Choice()).quantities()
    assert {str(each.origin) for each in found.values()} == {"predicted"}
    one = outlook(NODE, Choice())
    assert one.seconds_without_overlap > one.seconds > max(one.compute, one.communication)
    assert math.isclose(found["MFU"].value, 100 * one.mfu)


def test_a_finding_does_not_tell_the_plan():
    finding = examine_plan(lambda run: Choice(recompute=True, micro_batches=run.batch // run.ranks), 0)
    assert finding.symptom is Symptom.VALUE
    assert f"{fastest(NODE).seconds:.2f}" not in finding.saw
