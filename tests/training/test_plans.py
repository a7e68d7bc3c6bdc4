"""Every way to shard is the same training, and moves exactly the collectives and bytes that the plan says."""

import pytest
import torch
import torch.distributed as dist

from helpers.training.collectives import (
    Activation,
    Collectives,
    Recorder,
    count_collectives,
    padded_elements,
    predict_collectives,
    predict_traffic,
)
from helpers.training.loop import Accumulation, LoopError, Trainer
from helpers.training.model import ModelConfig
from helpers.training.plan import ShardingPlan
from helpers.training.plan_guards import PlanError
from helpers.training.presets import Preset
from helpers.training.ranks import Ranks
from helpers.training.traffic import counts_loopback, measure_loopback, sent_by_all

CONFIG = ModelConfig(width=64, blocks=2, heads=4, context=32)
PRESET = Preset("test", CONFIG, 16, 1e-2, 3)
GATED = Preset("gated", ModelConfig(64, 2, 4, 32, kv_heads=2, gated=True, rotary=True), 16, 1e-2, 3)
STEPS = 3
ONE = Accumulation()
CASES = {
    "block": (ShardingPlan(), ONE),
    "linear": (ShardingPlan(wrap="linear"), ONE),
    "model": (ShardingPlan(wrap="model"), ONE),
    "kept": (ShardingPlan(reshard_after_forward=False), ONE),
    "on two ranks": (ShardingPlan(reshard_after_forward=2), ONE),
    "replicas": (ShardingPlan(replicas=2), ONE),
    "tensor": (ShardingPlan(tensor_parallel=2), ONE),
    "tensor, recomputed": (ShardingPlan(tensor_parallel=2, recompute=True), Accumulation(2)),
    "prefetch": (ShardingPlan(prefetch=1), ONE),
    "async gather": (ShardingPlan(async_gather=True, prefetch=2), ONE),
    "offload": (ShardingPlan(offload=True), ONE),
    "recompute": (ShardingPlan(recompute=True), ONE),
    "bf16": (ShardingPlan(dtype="bf16"), ONE),
    "accumulate": (ShardingPlan(), Accumulation(2)),
    "hold": (ShardingPlan(), Accumulation(2, "hold")),
    "keep": (ShardingPlan(), Accumulation(4, "keep")),
    "keep all": (ShardingPlan(reshard_after_forward=False), Accumulation(2, "keep")),
    "keep on two ranks": (ShardingPlan(reshard_after_forward=2), Accumulation(2, "keep")),
    "replicas, accumulate": (ShardingPlan(replicas=2), Accumulation(2)),
    "replicas, hold": (ShardingPlan(replicas=2), Accumulation(2, "hold")),
}


@pytest.fixture(scope="module")
def ranks():
    with Ranks(4) as pool:
        yield pool


def losses_alone(preset, shortest):
    trainer = Trainer(preset, shortest=shortest)
    return [trainer.step() for _ in range(STEPS)], trainer.full_weights()


@pytest.fixture(scope="module")
def alone():
    return losses_alone(PRESET, 4)


def train(preset, plan, accumulation, shortest, on_meta=True):
    mesh = plan.make_mesh("cpu", dist.get_world_size())
    trainer = Trainer(preset, mesh, plan, accumulation=accumulation, on_meta=on_meta, shortest=shortest)
    metrics = [trainer.step() for _ in range(STEPS)]
    return metrics, trainer.full_weights()


def require_same(results, expected, tolerance):
    metrics, weights = expected
    for found, full in results:
        for one, many in zip(metrics, found):
            assert many.loss == pytest.approx(one.loss, abs=tolerance), f"step {one.step}"
            assert many.grad_norm == pytest.approx(one.grad_norm, rel=10 * tolerance), f"step {one.step}"
        for name, weight in weights.items():
            torch.testing.assert_close(full[name], weight, rtol=0, atol=100 * tolerance, msg=name)


@pytest.mark.parametrize("name", [name for name in CASES if name != "bf16"])
def test_every_plan_trains_like_one_process_also_with_uneven_tokens(ranks, alone, name):
    plan, accumulation = CASES[name]
    require_same(ranks.run(train, PRESET, plan, accumulation, 4), alone, 1e-5)


@pytest.mark.parametrize("plan", [ShardingPlan(), ShardingPlan(tensor_parallel=2)], ids=["block", "tensor"])
def test_grouped_gated_rotary_models_too(ranks, plan):
    require_same(ranks.run(train, GATED, plan, ONE, 0), losses_alone(GATED, 0), 1e-5)


def test_a_compiled_block_trains_the_same(alone):
    """Two ranks, since compiling takes most of the time."""
    with Ranks(2) as pair:
        results = pair.run(train, PRESET, ShardingPlan(compile=True), ONE, 4)
    require_same(results, alone, 1e-5)


def test_a_model_built_whole_and_one_built_on_meta_start_alike(ranks):
    whole = ranks.run(train, PRESET, ShardingPlan(), ONE, 4, False)
    require_same(whole, ranks.run(train, PRESET, ShardingPlan(), ONE, 4, True)[0], 1e-12)


def traffic(plan, accumulation):
    world = dist.get_world_size()
    trainer = Trainer(PRESET, plan.make_mesh("cpu", world), plan, accumulation=accumulation, on_meta=True)
    trainer.step()
    with Recorder() as recorder:
        trainer.backward()
    shards = plan.shards(world)
    elements = padded_elements(trainer.model, shards)
    share = PRESET.batch // trainer.readers
    activation = Activation(share * CONFIG.context * CONFIG.width * 4, CONFIG.blocks)
    counted = count_collectives(trainer.backward) if accumulation == ONE else None
    sent = measure_loopback(trainer.backward) if counts_loopback() else None
    predicted = predict_traffic(elements, plan, shards, accumulation, activation)
    return recorder.collectives, predicted, predict_collectives(len(elements), plan, accumulation), counted, sent


@pytest.mark.parametrize("name", CASES)
def test_collectives_and_bytes_are_those_of_the_formula(ranks, name):
    plan, accumulation = CASES[name]
    for recorded, predicted, counts, by_torch, sent in ranks.run(traffic, plan, accumulation):
        assert recorded == predicted
        gathers = sum(entry.count for entry in recorded if entry.kind == "all_gather")
        reductions = sum(entry.count for entry in recorded if entry.kind == "reduce_scatter")
        assert (gathers, reductions) == (counts.all_gather, counts.reduce_scatter)
        if by_torch and plan.tensor_parallel == 1:
            assert by_torch == counts, "CommDebugMode, which counts in its own way"
        if sent:
            # What is carried is the formula's bytes and the packets' headers, which small messages feel.
            assert 1.0 <= sent / sent_by_all(recorded, "gloo", 4) < 1.2


def test_the_first_step_of_the_lesson_is_counted_by_hand():
    assert predict_collectives(5) == Collectives(9, 5)
    assert predict_collectives(5, ShardingPlan(reshard_after_forward=False)) == Collectives(5, 5)
    assert predict_collectives(5, accumulation=Accumulation(2, "keep")) == Collectives(13, 5)
    assert predict_collectives(5, ShardingPlan(replicas=2), Accumulation(3)) == Collectives(27, 15, 5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"wrap": "layer"}, "wrap is 'layer'"),
        ({"reduce_dtype": "fp8"}, "reduce_dtype is 'fp8'"),
        ({"replicas": 0}, "replicas is 0"),
        ({"prefetch": -1}, "prefetch is -1"),
    ],
)
def test_a_plan_that_says_nothing_is_refused(options, words):
    with pytest.raises(PlanError, match=words):
        ShardingPlan(**options)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (ShardingPlan(replicas=3), "4 ranks are not a multiple of 3 replicas"),
        (ShardingPlan(reshard_after_forward=3), "cannot stay on 3 of 4 ranks"),
    ],
)
def test_a_world_that_does_not_divide_is_refused(plan, words):
    with pytest.raises(PlanError, match=words):
        plan.shards(4)


def test_accumulation_is_checked():
    with pytest.raises(LoopError, match="by 'no_sync'"):
        Accumulation(2, "no_sync")
    with pytest.raises(LoopError, match="16 sequences do not divide into 3"):
        Trainer(PRESET, accumulation=Accumulation(3))
