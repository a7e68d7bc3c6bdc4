"""Sharded training on real ranks against one process, which is its oracle."""

import math

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import Shard

from helpers.course.exercises.training import rows_kept
from helpers.training.collectives import Collectives, count_collectives, predict_collectives
from helpers.training.loop import Trainer
from helpers.training.model import ModelConfig, build_model, count_parameters
from helpers.training.plan import ShardingPlan
from helpers.training.plan_guards import PlanError, require_owned
from helpers.training.presets import Preset, PresetError
from helpers.training.ranks import Ranks, RanksError

PRESET = Preset("test", ModelConfig(width=32, blocks=2, heads=2, context=16), 8, 1e-2, 3)
STEPS = 5


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request):
    with Ranks(request.param) as pool:
        yield pool


@pytest.fixture(scope="module")
def alone():
    trainer = Trainer(PRESET)
    return [trainer.step() for _ in range(STEPS)], trainer.full_weights(), trainer.evaluate()


def mesh():
    return init_device_mesh("cpu", (dist.get_world_size(),))


def train(plan):
    trainer = Trainer(PRESET, mesh(), plan)
    metrics = [trainer.step() for _ in range(STEPS)]
    return metrics, trainer.full_weights(), trainer.evaluate(), trainer.step().loss


@pytest.mark.parametrize(
    "plan",
    [ShardingPlan(), ShardingPlan(reshard_after_forward=False), ShardingPlan(wrap="model")],
    ids=["blocks", "kept", "root"],
)
def test_sharded_steps_are_the_steps_of_one_process(ranks, alone, plan):
    """fp32 on both sides: only the order of the sums differs, so the tolerance is a few roundings."""
    expected, weights, held_out = alone
    results = ranks.run(train, plan)
    for metrics, full, evaluated, _ in results:
        for one, many in zip(expected, metrics):
            assert many.loss == pytest.approx(one.loss, abs=1e-5), f"step {one.step}"
            assert many.grad_norm == pytest.approx(one.grad_norm, rel=1e-4), f"step {one.step}"
        for name, weight in weights.items():
            torch.testing.assert_close(full[name], weight, rtol=1e-4, atol=1e-4, msg=name)
        assert evaluated == pytest.approx(held_out, abs=1e-4)
    assert len({loss for *_, loss in results}) == 1


def test_bf16_computes_coarsely_on_fp32_masters(ranks, alone):
    metrics, full, *_ = ranks.run(train, ShardingPlan(dtype="bf16"))[0]
    assert all(weight.dtype == torch.float32 for weight in full.values())
    assert metrics[0].loss == pytest.approx(alone[0][0].loss, abs=0.05)
    assert metrics[0].loss != alone[0][0].loss


def shards_after(steps):
    trainer = Trainer(PRESET, mesh())
    for _ in range(steps):
        trainer.step()
    without = trainer.held_bytes()
    trainer.backward()
    placements = {parameter.placements for parameter in trainer.model.parameters()}
    masters = {parameter.grad.dtype for parameter in trainer.model.parameters()}
    tensors = len(list(trainer.model.parameters()))
    return without, trainer.held_bytes(), placements, masters, tensors


def test_a_rank_holds_16_bytes_a_parameter_over_the_ranks(ranks):
    parameters = count_parameters(build_model(PRESET.model, 0))
    for without, held, placements, dtypes, tensors in ranks.run(shards_after, 1):
        share = 4 * parameters // ranks.count
        assert without["gradients"] == 0
        assert held["parameters"] == held["gradients"] == share
        assert held["optimizer state"] == 2 * share + 4 * tensors
        assert placements == {(Shard(0),)} and dtypes == {torch.float32}


def counts(plan):
    trainer = Trainer(PRESET, mesh(), plan)
    trainer.step()
    return count_collectives(trainer.backward)


@pytest.mark.parametrize(
    ("plan", "groups"),
    [(ShardingPlan(), 3), (ShardingPlan(reshard_after_forward=False), 3), (ShardingPlan(wrap="model"), 1)],
)
def test_collectives_are_2g_minus_1_and_g(ranks, plan, groups):
    found = ranks.run(counts, plan)
    assert set(found) == {predict_collectives(groups, plan)}
    gathers = 2 * groups - 1 if plan.reshard_after_forward else groups
    assert found[0] == Collectives(gathers, groups)


def whole_again():
    trainer = Trainer(PRESET, mesh())
    expected = build_model(PRESET.model, 0).state_dict()
    kinds = {type(block).__name__ for block in trainer.model.blocks}
    sharded = all(isinstance(module, FSDPModule) for module in [trainer.model, *trainer.model.blocks])
    full = trainer.full_weights()
    return kinds, sharded, all(torch.equal(full[name], expected[name]) for name in expected)


def test_shards_of_the_start_are_the_seeded_weights(ranks):
    """Every rank keeps its own slice: the halves of one weight are not copies of each other."""
    assert ranks.run(whole_again) == [({"FSDPBlock"}, True, True)] * ranks.count


def real_rows(rows):
    layer = torch.nn.Linear(3, rows, bias=False)
    torch.nn.init.constant_(layer.weight, 1.0).data.mul_(torch.arange(rows)[:, None])
    fully_shard(layer, mesh=mesh())
    return layer.weight.to_local().detach()


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 8, 10, 11])
def test_the_oracle_of_the_exercise_is_what_fully_shard_keeps(ranks, rows):
    full = torch.arange(rows).float()[:, None].expand(rows, 3).contiguous()
    for rank, real in enumerate(ranks.run(real_rows, rows)):
        kept = rows_kept(full, rank, ranks.count)
        assert kept.shape == real.shape and torch.equal(kept, real)


def other_seed():
    Trainer(PRESET, mesh(), seed=dist.get_rank())


def early_optimizer():
    model = build_model(PRESET.model, 0)
    optimizer = torch.optim.AdamW(model.parameters())
    fully_shard(model, mesh=mesh())
    require_owned(optimizer, model)


def late_sharding():
    trainer = Trainer(PRESET)
    fully_shard(trainer.model, mesh=mesh())
    trainer.step()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (other_seed, "all 2 ranks raised PlanError: rank 1 holds other weights than rank 0"),
        (early_optimizer, r"PlanError: the optimizer does not hold 20 of the model's parameters"),
        (late_sharding, r"PlanError: the optimizer does not hold"),
    ],
)
def test_mistakes_of_sharding_are_named(function, words):
    with pytest.raises(RanksError, match=words), Ranks(2) as pair:
        pair.run(function)


def test_three_ranks_cannot_share_eight_sequences():
    words = "PresetError: a batch of 8 sequences does not divide among 3"
    with pytest.raises(RanksError, match=words), Ranks(3) as three:
        three.run(train, ShardingPlan())
    with pytest.raises(PresetError):
        PRESET.batch_per_rank(3)


def test_an_unknown_dtype_is_refused():
    with pytest.raises(PlanError, match="dtype is 'fp8'"):
        ShardingPlan(dtype="fp8")


def test_a_step_is_adamw_by_the_book():
    """One step written out from Loshchilov & Hutter's AdamW, after clipping to a norm of 1."""
    trainer = Trainer(PRESET)
    weight = trainer.model.head.weight
    before = weight.detach().double().clone()
    trainer.backward()
    gradients = [parameter.grad.double() for parameter in trainer.model.parameters()]
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
    gradient = weight.grad.double() * min(1.0, 1.0 / (norm + 1e-6))
    trainer.optimizer.zero_grad()
    metrics = trainer.step()
    rate = PRESET.learning_rate / PRESET.warmup_steps
    expected = before * (1 - rate * 0.01) - rate * gradient / (gradient.abs() + 1e-8)
    assert metrics.grad_norm == pytest.approx(norm, rel=1e-5)
    torch.testing.assert_close(weight.detach().double(), expected, rtol=1e-4, atol=1e-5)


def test_metrics_follow_from_each_other():
    trainer = Trainer(PRESET, roof=1e12)
    first, second = trainer.step(), trainer.step()
    assert (first.step, second.step) == (1, 2)
    assert first.tokens == 8 * 16
    assert first.tokens_per_second * first.seconds == pytest.approx(first.tokens)
    assert first.mfu * 1e12 == pytest.approx(first.flop_per_second)
    assert set(first.quantities()) == {"loss", "tokens per second", "step time", "MFU", first.memory}
    assert f"loss {first.loss:7.4f}" in str(first) and "MFU" in str(first)
    assert "MFU" not in str(Trainer(PRESET).step())
