"""A run that is killed goes on where it was: the losses of the uninterrupted run, on any number of ranks."""

import json
import os
import random
import shutil
import signal

import pytest
import torch
import torch.distributed as dist

from helpers.training.checkpoint import MANIFEST, CheckpointError, Checkpoints
from helpers.training.loop import Trainer
from helpers.training.model import ModelConfig
from helpers.training.plan import ShardingPlan
from helpers.training.presets import Preset
from helpers.training.ranks import Ranks, RanksError
from helpers.training.train import main, train

PRESET = Preset("test", ModelConfig(width=32, blocks=2, heads=2, context=16), 8, 1e-2, 3)
OTHER = Preset("other", ModelConfig(width=32, blocks=3, heads=2, context=16), 8, 1e-2, 3)
STEPS = 8


@pytest.fixture(scope="module")
def uninterrupted():
    trainer = Trainer(PRESET)
    return [trainer.step().loss for _ in range(STEPS)], trainer.full_weights()


def start(plan=None, preset=PRESET):
    plan = plan or ShardingPlan()
    return Trainer(preset, plan.make_mesh("cpu", dist.get_world_size()), plan)


def run(folder, every=2, asynchronous=False, victim=None, at=None, plan=None):
    """Train to STEPS from the newest checkpoint; `victim` kills itself in the middle of step `at`."""
    trainer, checkpoints = start(plan), Checkpoints(folder, asynchronous=asynchronous)
    first = checkpoints.load(trainer)

    def die(*_):
        if dist.get_rank() == victim and trainer.steps_done == at - 1:
            os.kill(os.getpid(), signal.SIGKILL)

    trainer.model.blocks[1].ffn.register_forward_pre_hook(die)
    losses = {metrics.step: metrics.loss for metrics in train(trainer, STEPS, checkpoints=checkpoints, every=every)}
    return first, losses, trainer.full_weights()


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("ranks_after", [4, 2, 1])
def test_a_killed_run_resumes_with_the_losses_of_the_uninterrupted_one(
    tmp_path, uninterrupted, asynchronous, ranks_after
):
    draw = random.Random(f"{asynchronous} {ranks_after}")
    victim, at = draw.randrange(4), draw.randrange(5, STEPS + 1)
    with pytest.raises(RanksError, match=f"rank {victim} was killed by SIGKILL"), Ranks(4) as ranks:
        ranks.run(run, tmp_path, 2, asynchronous, victim, at, deadline_s=30)
    with Ranks(ranks_after) as ranks:
        first, losses, weights = ranks.run(run, tmp_path)[0]
    # A save that was still being written when its rank died was never published.
    assert first in ((2, 4, 6) if asynchronous else ((at - 1) // 2 * 2,)) and first < at
    expected, final = uninterrupted
    assert list(losses) == list(range(first + 1, STEPS + 1))
    for step, loss in losses.items():
        assert loss == pytest.approx(expected[step - 1], abs=1e-5), f"step {step}"
    for name, weight in final.items():
        torch.testing.assert_close(weights[name], weight, rtol=1e-4, atol=1e-4, msg=name)


def losses_of(folder, stop):
    trainer = start()
    checkpoints = Checkpoints(folder)
    checkpoints.load(trainer)
    return [trainer.step().loss for _ in range(trainer.steps_done, stop)]


def save_at(folder, step, plan=None):
    trainer, checkpoints = start(plan), Checkpoints(folder)
    for _ in range(step):
        trainer.step()
    checkpoints.save(trainer)
    return [trainer.step().loss for _ in range(3)]


def test_on_the_same_ranks_the_resumed_losses_are_bit_equal(tmp_path):
    with Ranks(2) as ranks:
        straight = ranks.run(save_at, tmp_path, 3)[0]
    with Ranks(2) as ranks:
        assert ranks.run(losses_of, tmp_path, 6)[0] == straight


def whole(folder, plan=None):
    trainer = start(plan)
    Checkpoints(folder).load(trainer)
    trainer.optimizer.zero_grad()
    moments = trainer.optimizer.state_dict()["state"]
    full = {i: entry["exp_avg"].full_tensor() for i, entry in moments.items()}
    return trainer.full_weights(), full


def test_shards_of_four_ranks_are_bit_equal_on_two_and_with_replicas(tmp_path):
    with Ranks(4) as ranks:
        ranks.run(save_at, tmp_path, 2)
        expected = ranks.run(whole, tmp_path)[0]
        replicated = ranks.run(whole, tmp_path, ShardingPlan(replicas=2))[0]
    with Ranks(2) as ranks:
        fewer = ranks.run(whole, tmp_path)[0]
    for found in (replicated, fewer):
        assert all(torch.equal(found[0][name], weight) for name, weight in expected[0].items())
        assert all(torch.equal(found[1][name], moment) for name, moment in expected[1].items())


def test_a_run_of_one_process_saves_and_resumes(tmp_path, uninterrupted):
    trainer, checkpoints = Trainer(PRESET), Checkpoints(tmp_path, keep=1)
    for _ in train(trainer, 5, checkpoints=checkpoints, every=2):
        pass
    assert checkpoints.steps == (5,), "the last step is saved too, and only `keep` are kept"
    again = Trainer(PRESET)
    assert Checkpoints(tmp_path).load(again) == 5
    assert [again.step().loss for _ in range(3)] == pytest.approx(uninterrupted[0][5:], abs=1e-6)


@pytest.fixture
def saved(tmp_path):
    trainer = Trainer(PRESET)
    trainer.step()
    Checkpoints(tmp_path).save(trainer)
    return tmp_path / "step-00000001"


def cut(folder):
    data = next(folder.glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:-100])


def flip(folder):
    data = next(folder.glob("*.distcp"))
    content = bytearray(data.read_bytes())
    content[100:200] = bytes(100)
    data.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut, r"distcp has \d+ of \d+ bytes"),
        (lambda folder: (folder / MANIFEST).unlink(), "manifest cannot be read"),
        (lambda folder: (folder / MANIFEST).write_text("{"), "manifest cannot be read"),
        (lambda folder: (folder / ".metadata").unlink(), r"\.metadata has 0 of"),
        (flip, "was changed: its checksum differs"),
        (lambda folder: shutil.rmtree(folder), "there is no such checkpoint"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_changes_nothing(saved, damage, words):
    damage(saved)
    trainer = Trainer(PRESET)
    before = trainer.full_weights()
    with pytest.raises(CheckpointError, match=words):
        Checkpoints(saved.parent).load(trainer, 1)
    assert trainer.steps_done == 0
    assert all(torch.equal(weight, before[name]) for name, weight in trainer.full_weights().items())


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda: Trainer(OTHER), "it holds a model with blocks 2, this one has 3"),
        (lambda: Trainer(PRESET, seed=1), "it was trained with seed 0, this run has 1"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(saved, other, words):
    with pytest.raises(CheckpointError, match=words):
        Checkpoints(saved.parent).load(other())


def test_what_was_being_written_is_no_checkpoint(saved):
    saved.rename(saved.with_name("step-00000002.writing"))
    assert Checkpoints(saved.parent).steps == ()
    assert Checkpoints(saved.parent).load(Trainer(PRESET)) == 0


def write_nowhere(folder):
    Checkpoints(folder).save(start())


def test_a_folder_that_cannot_be_written_is_told_on_every_rank(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(RanksError, match="all 2 ranks raised CheckpointError: cannot be written"), Ranks(2) as pair:
        pair.run(write_nowhere, blocked)
    with pytest.raises(CheckpointError, match="keeping 0 checkpoints"):
        Checkpoints(tmp_path, keep=0)


def test_the_script_resumes_and_its_log_has_each_step_once(tmp_path, capsys):
    options = ["--checkpoint", str(tmp_path / "runs"), "--every", "2", "--metrics", str(tmp_path / "log.jsonl")]
    assert main(["--steps", "3", *options]) == 0
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"step": 4, "loss": 9}\n{"step": 5, "lo')  # what a killed run leaves
    assert main(["--steps", "5", *options]) == 0
    assert "resumed after step 3" in capsys.readouterr().out
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5] and lines[3]["loss"] < 9


def test_the_script_refuses_options_that_fit_no_single_process(capsys):
    assert main(["--replicas", "2"]) == 2
    assert "1 ranks are not a multiple of 2 replicas" in capsys.readouterr().err
    assert main(["--every", "0"]) == 2
    assert "--every is 0" in capsys.readouterr().err
