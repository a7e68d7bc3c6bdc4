"""The ledger balances: formula, FSDPMemTracker and the allocator agree on one rank's bytes."""

import pytest
import torch
import torch.distributed as dist

from helpers.measure import Origin
from helpers.training.allocator import allocated_by
from helpers.training.ledger import Ledger, LedgerError, LedgerLine, training_state
from helpers.training.ledger_formulas import Share, elements_of, predict_ledger
from helpers.training.loop import Trainer
from helpers.training.mfu import count_weights
from helpers.training.plan import ShardingPlan
from helpers.training.presets import PRESETS, load_preset
from helpers.training.ranks import Ranks
from helpers.training.tracker import track_step

TINY = load_preset("tiny")
PLANS = {
    "block": ShardingPlan(),
    "recompute": ShardingPlan(recompute=True),
    "model": ShardingPlan(wrap="model"),
    "linear": ShardingPlan(wrap="linear"),
    "kept": ShardingPlan(reshard_after_forward=False),
    "on two ranks": ShardingPlan(reshard_after_forward=2),
    "replicas": ShardingPlan(replicas=2),
    "bf16": ShardingPlan(dtype="bf16"),
}


@pytest.fixture(scope="module")
def ranks():
    with Ranks(4) as pool:
        yield pool


def count(plan):
    trainer = Trainer(TINY, plan.make_mesh("cpu", dist.get_world_size()), plan)
    trainer.step()
    held = trainer.held_bytes()
    allocated = allocated_by(trainer.step)
    peak = allocated.peak + held["parameters"] + held["optimizer state"]
    return track_step(trainer.model, trainer.optimizer, trainer.batches.at(0).inputs), peak, held


@pytest.mark.parametrize("name", PLANS)
def test_formula_tracker_and_allocator_agree_on_real_ranks(ranks, name):
    plan = PLANS[name]
    ledger = predict_ledger(TINY.model, plan, Share(TINY.batch // 4, plan.shards(4)))
    for tracked, peak, held in ranks.run(count, plan):
        filled = ledger.filled(tracked=tracked, device={("peak", "total"): peak})
        filled.require()
        assert all(line.tracked is not None for line in filled.lines if line.predicted is not None)
        assert filled.line("between steps", "parameters").tracked == held["parameters"]
        assert filled.line("between steps", "optimizer").tracked == held["optimizer state"]
        total = filled.line("peak", "total")
        # gloo's thread may hold the last gathered group a moment longer than the tracker thinks.
        group = 4 * elements_of(TINY.model, 4).block
        assert 0.99 * total.tracked <= total.device <= 1.01 * (total.tracked + group)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("shards", [1, 8, 1000])
def test_padding_is_never_less_than_the_parameters(name, shards):
    config = load_preset(name).model
    padded, whole = elements_of(config, shards).total, count_weights(config).total
    assert padded == whole if shards == 1 else padded >= whole
    assert padded % shards == 0


def test_a_line_outside_its_tolerance_is_named():
    line = LedgerLine("peak", "total", 100.0, "by hand", 0.1)
    Ledger((line,)).filled(tracked={("peak", "total"): 109}).require()
    with pytest.raises(LedgerError, match="predicted 100 B by by hand, counted 111 B"):
        Ledger((line,)).filled(tracked={("peak", "total"): 111}).require()
    with pytest.raises(LedgerError, match="1 lines do not balance"):
        Ledger((line,)).filled(tracked={("peak", "total"): 100}, device={("peak", "total"): 80}).require()


def test_what_nobody_predicted_is_shown_too():
    ledger = Ledger((LedgerLine("peak", "total", 100.0, "by hand", 0.1),))
    filled = ledger.filled(tracked={("between steps", "parameters"): 7})
    assert [line.category for line in filled.lines] == ["parameters", "total"]
    assert "7 B [measured]" in str(filled.table())
    assert "7 B [simulated: fake ranks]" in str(filled.table("fake ranks"))
    with pytest.raises(LedgerError, match="no line 'logits'"):
        filled.line("peak", "logits")


def test_formulas_refuse_what_they_do_not_cover():
    with pytest.raises(LedgerError, match="no formula for tensor parallelism"):
        predict_ledger(TINY.model, ShardingPlan(tensor_parallel=2), Share(4, 2))


def test_the_allocator_sees_a_block_that_came_and_went():
    def work():
        torch.empty(1_000_000, dtype=torch.uint8).fill_(1)
        return kept.append(torch.empty(1000, dtype=torch.uint8).fill_(1))

    kept = []
    found = allocated_by(work)
    assert 1_000_000 <= found.peak < 1_010_000 and 1000 <= found.end < 2000


def test_training_state_is_sixteen_bytes_a_parameter():
    state = training_state(1000, 4)
    assert state.value == 4000 and state.unit == "B" and state.origin is Origin.PREDICTED
    for parameters, ranks in ((0, 4), (4, 0)):
        with pytest.raises(ValueError, match="must be positive"):
            training_state(parameters, ranks)
