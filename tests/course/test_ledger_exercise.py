"""The oracle of training.2 agrees with the formulas, with torch's tracker and with the recorded collectives."""

import threading
import time
from dataclasses import replace

import pytest

from helpers.course.exercise import Symptom
from helpers.course.exercises.deadline import TooLong, within
from helpers.course.exercises.training.ledger import LINES, Job, examine_fill, job_of, lines_counted
from helpers.training.ledger_formulas import Share, elements_of, predict_ledger
from helpers.training.plan import ShardingPlan
from helpers.training.presets import load_preset
from helpers.training.simulate import simulate

TINY = load_preset("tiny").model
SHORT = replace(TINY, context=8)  # few tokens, so that the fullest moment is one of gathered and reduced groups
PLANS = {
    "fp32": ShardingPlan(),
    "bf16": ShardingPlan(dtype="bf16"),
    "all bf16": ShardingPlan(dtype="bf16", reduce_dtype="bf16"),
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
def test_counted_tensors_are_the_formulas(name, ranks):
    plan = PLANS[name]
    found = lines_counted(job_of(TINY, ranks, 2, plan))
    ledger, sizes = predict_ledger(TINY, plan, Share(2, ranks)), elements_of(TINY, ranks)
    for line in ("parameters", "gradients", "optimizer"):
        assert found[line] == ledger.line("after backward", line).predicted
    root = ledger.line("after forward", "unsharded group").predicted
    size = 2 if plan.dtype == "bf16" else 4
    assert found["unsharded group"] == root + size * sizes.block
    assert found["reduce-scatter buffer"] == (2 if plan.reduce_dtype == "bf16" else 4) * sizes.block
    assert found["logits"] == ledger.line("after forward", "logits").predicted - 8 * 2 * TINY.context


@pytest.mark.parametrize("ranks", [3, 4])
@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_counted_tensors_are_what_the_tracker_sees(name, ranks):
    plan = PLANS[name]
    found, memory = lines_counted(job_of(SHORT, ranks, 1, plan)), simulate(SHORT, plan, ranks, 1).memory
    assert found["parameters"] == memory["between steps", "parameters"]
    assert found["gradients"] == memory["after backward", "gradients"]
    counters = 4 * sum(len(group) for group in job_of(SHORT, ranks, 1).groups)
    assert found["optimizer"] == memory["between steps", "optimizer"] - counters
    assert found["unsharded group"] == memory["peak", "unsharded group"]
    assert found["reduce-scatter buffer"] == memory["peak", "reduce-scatter buffer"]


def test_all_weights_stay_without_resharding():
    plan = ShardingPlan(reshard_after_forward=False)
    memory = simulate(SHORT, plan, 4, 1).memory
    assert lines_counted(job_of(SHORT, 4, 1, plan))["unsharded group"] == memory["after forward", "unsharded group"]


def reduced(config):
    collectives = simulate(config, ShardingPlan(), 4, 1).collectives
    return next(each.bytes for each in collectives if each.kind == "reduce_scatter")


def test_a_large_root_is_the_largest_reduction():
    sent = [reduced(replace(SHORT, vocab=8192, blocks=blocks)) for blocks in (1, 2)]
    block = sent[1] - sent[0]
    root = sent[0] - block
    assert lines_counted(job_of(replace(SHORT, vocab=8192), 4, 1))["reduce-scatter buffer"] == root > block


def test_a_job_is_of_blocks():
    job = job_of(TINY, 4, 2)
    assert len(job.blocks) == TINY.blocks and job.even and job.tokens == 2 * TINY.context
    with pytest.raises(ValueError, match="the groups of this job are the blocks"):
        job_of(TINY, 4, 1, ShardingPlan(wrap="linear"))


def test_findings_name_the_line_and_keep_the_answer_to_themselves():
    job = Job(root=((3, 2),), blocks=(((9,),),), ranks=3, tokens=2, vocab=5)

    def wrong(job):
        return lines_counted(job) | {"logits": 1}

    finding = examine_fill(wrong, 0)
    assert "logits is 1 B" in finding.saw and str(lines_counted(job)["logits"]) not in finding.saw
    assert finding.symptom is Symptom.VALUE
    assert set(lines_counted(job)) == set(LINES)


def test_late_work_is_left_behind_and_errors_go_through():
    before = threading.active_count()
    with pytest.raises(TooLong):
        within(0.05, lambda: all(iter(lambda: True, False)))
    deadline = time.monotonic() + 10
    while threading.active_count() > before:
        assert time.monotonic() < deadline, "the late thread still runs"
        time.sleep(0.01)
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 / 0)
    with pytest.raises(SystemExit):
        within(5, lambda: exit(3))
    assert within(5, lambda: 7) == 7
