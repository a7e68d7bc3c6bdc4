"""The slow loop is right, its trace shows three faults, and its examinations count what they say they count."""

import math

import pytest
import torch
from torch.nn import functional as F

from helpers.course.checks import State, find_exercise, judge
from helpers.course.exercises.profiling import slow_loop as slow
from helpers.course.exercises.profiling.attend_trial import Shape, attended, operators_of
from helpers.course.exercises.profiling.loader_trial import Reading
from helpers.course.exercises.profiling.watched import Device
from helpers.profiling.capture import capture
from helpers.profiling.trace import read_trace


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_slow_attention_is_torchs_own():
    q, k, v, _ = Shape(2, 3, 7, 4).draw(0)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(slow.attend(q, k, v), expected)
    torch.testing.assert_close(attended(q, k, v).float(), expected)


def test_the_slow_batches_are_the_windows_of_the_text():
    text = "the quick brown fox"
    reading = Reading(len(text), 4, 3, 5)
    tokens = torch.tensor(slow.encode(text))
    batches = slow.batches(text, slow.encode, 4, 3)
    for index in range(reading.batches):
        inputs, targets = next(batches)
        for row, start in enumerate(reading.starts(index)):
            assert inputs[row].equal(tokens[start : start + 4]) and targets[row].equal(tokens[start + 1 : start + 5])


def test_a_trace_shows_each_fault(tmp_path):
    training = slow.Training()
    trace = read_trace(
        capture(lambda: slow.run(training.step, 2, 2, lambda *_: None), tmp_path / "slow.json", steps=1, warmup=1)
    )
    load, forward, backward, update, report = slow.parts_of(trace, 2)
    whole = sum(part.seconds for part in (load, forward, backward, update, report))
    annotations = sum(e.duration for e in trace.of("user_annotation") if e.name in slow.PARTS) / 2
    assert whole == pytest.approx(annotations)
    assert load.operators < 100 < forward.operators < backward.operators
    assert load.busy <= load.seconds and forward.busy <= forward.seconds
    assert report.reads == 1 and forward.reads == backward.reads == 0


def test_the_slow_loop_learns_and_its_faults_can_be_mended_without_changing_that():
    before = slow.losses(slow.Training(), 5)
    after = slow.losses(
        slow.Training(attend=lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)), 5
    )
    assert before[-1] < before[0] and before == pytest.approx(after, abs=1e-3)
    assert all(f"def {part}" in slow.source_of(part) for part in ("batches", "run", "attend"))


@pytest.mark.parametrize(
    "look",
    [
        lambda loss: loss.item(),
        lambda loss: float(loss),
        lambda loss: int(loss),
        lambda loss: bool(loss > 1),
        lambda loss: f"{loss:.3f}",
        lambda loss: repr(loss),
        lambda loss: loss.detach().numpy(),
        lambda loss: loss.tolist(),
        lambda loss: loss.cpu(),
        lambda loss: loss.to("cpu"),
        lambda loss: loss.to(device=torch.device("cpu")),
        lambda loss: math.isnan(loss),
        lambda loss: torch.stack([loss, loss]).mean().item(),
        lambda loss: max(0.0, loss),
    ],
)
def test_every_look_at_a_watched_loss_is_counted_once(look):
    device = Device([2.5])
    look(device.step())
    assert device.reads == 1, device.ways


@pytest.mark.parametrize(
    "no_look",
    [
        lambda loss: loss.detach(),
        lambda loss: torch.stack([loss.detach()] * 3).mean(),
        lambda loss: 0.5 * loss + 1,
        lambda loss: loss.to(torch.float64),
        lambda loss: (loss.shape, loss.dtype, loss.device, loss.requires_grad),
    ],
)
def test_what_stays_on_the_device_is_no_look(no_look):
    device = Device([2.5])
    no_look(device.step())
    assert device.reads == 0, device.ways


def test_a_held_loss_keeps_its_graph_alive_and_a_detached_one_does_not():
    device = Device([1.0, 2.0, 3.0, 4.0])
    held = [device.step() for _ in range(4)]
    assert device.alive == 4 and held
    device = Device([1.0, 2.0, 3.0, 4.0])
    kept = [device.step().detach() for _ in range(4)]
    device.count()
    assert device.alive <= 2 and [loss.item() for loss in kept] == [1.0, 2.0, 3.0, 4.0]


def test_operators_are_counted_forward_and_backward():
    assert operators_of(lambda q, k, v: q * v, Shape(1, 1, 2, 2)) < 12
    few, more = (operators_of(slow.attend, Shape(1, 1, tokens, 2)) for tokens in (2, 6))
    assert more > few + 4 * 20


@pytest.mark.parametrize("identifier", ["profiling.2", "profiling.3", "profiling.4"])
def test_an_error_of_the_answer_is_told_as_such(identifier):
    def answer(*_):
        raise ZeroDivisionError("mine")

    verdict = judge(find_exercise(identifier), answer, 0)
    assert verdict.state is State.ERROR and "mine" in str(verdict)


@pytest.mark.parametrize("identifier", ["profiling.2", "profiling.3", "profiling.4"])
@pytest.mark.parametrize("nothing", [None, 3, "text"])
def test_an_answer_that_returns_nonsense_is_not_yet(identifier, nothing):
    assert judge(find_exercise(identifier), lambda *_: nothing, 0).state is State.NOT_YET
