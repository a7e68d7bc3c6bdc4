"""The guard of meta initialisation catches what the official example leaves behind."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from helpers.training.materialise import (
    fill_with_sentinel,
    materialise,
    require_distinct_shards,
    require_initialised,
    shard_peers,
)
from helpers.training.model import MiniLLM, ModelConfig, build_model, initialise
from helpers.training.plan import ShardingPlan, shard
from helpers.training.plan_guards import PlanError, fingerprint, require_same_weights, require_shardable
from helpers.training.ranks import Ranks, RanksError

CONFIG = ModelConfig(width=32, blocks=2, heads=4, context=16)


@pytest.fixture
def pair():
    with Ranks(2) as ranks:
        yield ranks


def on_meta(plan):
    with torch.device("meta"):
        model = MiniLLM(CONFIG)
    return shard(model, plan.make_mesh("cpu", dist.get_world_size()), plan)


def bits_after(plan):
    model = materialise(on_meta(plan), "cpu", seed=3)
    whole = dict(build_model(CONFIG, 3).named_parameters())
    return all(torch.equal(value.full_tensor(), whole[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    "plan",
    [ShardingPlan(), ShardingPlan(wrap="linear"), ShardingPlan(replicas=2)],
    ids=["block", "linear", "replicas"],
)
def test_shards_drawn_alone_are_the_whole_models_bits(plan):
    with Ranks(4) as ranks:
        assert all(ranks.run(bits_after, plan))


def some_modules_only():
    """The official example's defect: only the modules at the top are initialised after `to_empty`."""
    model = on_meta(ShardingPlan())
    model.to_empty(device="cpu")
    fill_with_sentinel(model)
    for module in (model.token, model.position, model.norm, model.head):
        module.reset_parameters()
    require_initialised(model)


def each_rank_draws_its_own():
    """Every rank draws the same numbers into its own half."""
    model = on_meta(ShardingPlan())
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.to_local().copy_(torch.rand(parameter.to_local().shape))
    require_distinct_shards(model)


def different_seeds():
    require_same_weights(build_model(CONFIG, seed=dist.get_rank()))


def one_bit():
    model = build_model(CONFIG, 0)
    if dist.get_rank() == 1:
        with torch.no_grad():
            model.head.weight[5, 7] = torch.nextafter(model.head.weight[5, 7], torch.tensor(9.0))
    require_same_weights(model)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (some_modules_only, r"20 weights|\d+ weights were never initialised[\s\S]*blocks\.0"),
        (each_rank_draws_its_own, r"rank 1 holds the same shard as another rank[\s\S]*token\.weight"),
        (different_seeds, r"rank 1 holds other weights than rank 0"),
        (one_bit, r"rank 1 holds other weights than rank 0[\s\S]*head\.weight"),
    ],
)
def test_what_would_stay_silent_is_named(pair, function, words):
    with pytest.raises(RanksError, match=words):
        pair.run(function)


def test_a_buffer_that_nobody_set_is_named():
    model = build_model(CONFIG, 0)
    model.register_buffer("angles", torch.empty(3), persistent=False)
    fill_with_sentinel(model)
    initialise(model)
    with pytest.raises(PlanError, match=r"1 weights were never initialised[\s\S]*angles"):
        require_initialised(model)


def test_a_fingerprint_knows_order_and_bits():
    one, other = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint(one) == fingerprint(one.clone())
    assert fingerprint(torch.tensor([0.0])) != fingerprint(torch.tensor([-0.0]))


class Mesh:
    device_type = "cpu"


def changed(change):
    model = build_model(CONFIG, 0)
    change(model)
    require_shardable(model, list(model.blocks), Mesh())


def tie(model):
    model.blocks[1].ffn.up.weight = model.blocks[0].ffn.up.weight


def scalar(model):
    model.temperature = nn.Parameter(torch.tensor(1.0))


def slanted(model):
    model.head.weight = nn.Parameter(torch.rand(32, 256).T)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda model: model.bfloat16(), "the master weight is bfloat16"),
        (lambda model: model.head.half(), r"the master weight is float16[\s\S]*head\.weight"),
        (lambda model: model.to("meta").double(), "the master weight is float64"),
        (tie, r"blocks\.1\.ffn\.up\.weight and blocks\.0\.ffn\.up\.weight are one weight in two groups"),
        (scalar, r"a scalar has no rows[\s\S]*temperature"),
        (slanted, r"not contiguous[\s\S]*head\.weight"),
    ],
)
def test_models_that_sharding_would_break_are_refused(change, words):
    with pytest.raises(PlanError, match=words):
        changed(change)


def wrong_mesh(plan, other):
    shard(build_model(CONFIG, 0), other.make_mesh("cpu", dist.get_world_size()), plan)


def test_a_mesh_of_another_plan_is_refused(pair):
    with pytest.raises(RanksError, match=r"the plan needs \['replicate', 'shard'\]"):
        pair.run(wrong_mesh, ShardingPlan(replicas=2), ShardingPlan())


def test_too_many_tensor_ranks_are_refused():
    with pytest.raises(RanksError, match="8 tensor ranks do not divide 4 heads"), Ranks(8) as ranks:
        ranks.run(wrong_mesh, ShardingPlan(tensor_parallel=8), ShardingPlan(tensor_parallel=8))


def peers(plan):
    return next(shard_peers(parameter) for parameter in on_meta(plan).parameters())


def test_replicas_are_not_peers():
    with Ranks(4) as ranks:
        assert ranks.run(peers, ShardingPlan(replicas=2)) == [[0, 1], [0, 1], [2, 3], [2, 3]]


class Owner(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 2))


def cannot_reset():
    with torch.device("meta"):
        model = Owner()
    fully_shard(model, mesh=ShardingPlan().make_mesh("cpu", 1))
    materialise(model, "cpu", 0)


def test_a_module_that_cannot_be_initialised_is_named():
    with pytest.raises(RanksError, match="Owner owns parameters but has no reset_parameters"), Ranks(1) as one:
        one.run(cannot_reset)
