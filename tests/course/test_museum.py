"""Every exhibit of the museum shows its fault; the mended scripts train like one process."""

import threading
from pathlib import Path

import nbformat
import pytest
import torch
from torch.nn import functional as F

from helpers.course.checks import State, judge
from helpers.course.exercise import Symptom
from helpers.course.exercises.training.museum import EXERCISES
from helpers.course.museum import hall
from helpers.course.museum.alone import mean_loss, train_alone
from helpers.course.museum.bench import PADDING, Build, Task
from helpers.course.museum.exhibits import EXHIBITS, STEPS, exhibit, report_on
from helpers.training.ranks import RanksError

ROOT = Path(__file__).parents[2]
SYMPTOMS = {
    "training.6": Symptom.TRAINS_NOTHING,
    "training.7": Symptom.VALUE,
    "training.8": Symptom.INCONSISTENT,
    "training.9": Symptom.HANGS,
    "training.10": Symptom.ABORTS,
    "training.11": Symptom.VALUE,
    "training.12": Symptom.VALUE,
    "training.13": Symptom.CONSTANT_FACTOR,
    "training.14": Symptom.DTYPE,
    "training.15": Symptom.NAN,
}
IDS = list(SYMPTOMS)


@pytest.fixture(scope="module", autouse=True)
def ranks_end_with_the_module():
    yield
    hall.close()


def exercise(identifier):
    return {each.id: each for each in EXERCISES}[identifier]


def mended(identifier):
    """The answer cell of the solution notebook, run after its imports."""
    cells = nbformat.read(ROOT / "solutions/training/05_bug_museum.ipynb", as_version=4).cells
    sources = [cell.source for cell in cells if cell.cell_type == "code"]
    names: dict = {}
    exec(next(source for source in sources if source.startswith("import ")), names)
    before = set(names)
    exec(next(source for source in sources if f"# EXERCISE {identifier}:" in source), names)
    [answer] = [names[name] for name in names.keys() - before]
    return answer


def test_each_exhibit_has_its_exercise():
    assert [item.exercise for item in EXHIBITS] == [each.id for each in EXERCISES] == IDS


@pytest.mark.parametrize("identifier", IDS)
def test_a_script_is_short_enough_to_read(identifier):
    assert 10 <= len(exhibit(identifier).code.splitlines()) <= 22


@pytest.mark.parametrize("identifier", IDS)
def test_an_exhibit_shows_its_symptom(identifier):
    verdict = judge(exercise(identifier), exhibit(identifier).script, 5)
    assert verdict.state is State.NOT_YET, str(verdict)
    assert dict(verdict.details)["Kind"] == SYMPTOMS[identifier], str(verdict)


@pytest.mark.parametrize("identifier", IDS)
def test_the_mended_script_passes(identifier):
    verdict = judge(exercise(identifier), mended(identifier), 5)
    assert verdict.state is State.PASS, str(verdict)


def test_the_optimizer_of_old_weights_moves_none():
    assert exhibit("training.6").run().moved == 0.0


def test_bf16_weights_hardly_move_and_fp32_weights_do():
    item = exhibit("training.14")
    assert item.run().moved < 0.5 < report_on(mended("training.14"), item.task).moved


def test_a_silent_fault_ends_well_with_the_same_losses_on_both_ranks():
    for identifier in ("training.7", "training.8", "training.11", "training.12", "training.13"):
        report = exhibit(identifier).run()
        assert report.ending == "returned" and report.losses[0] == report.losses[1]
        assert len(report.alone) == STEPS and report.losses[0] != pytest.approx(report.alone, rel=1e-3)


def test_a_hang_names_the_rank_and_the_line():
    report = exhibit("training.9").run()
    assert report.ending == "hangs"
    assert "rank 0 waited in full_tensor" in report.message and "rank 1 returned" in report.message


def test_an_abort_becomes_a_report_and_the_next_visitor_gets_new_ranks():
    report = exhibit("training.10").run()
    assert report.ending == "aborts" and "SIGABRT" in report.message
    assert "SIGABRT" in str(report)
    assert exhibit("training.13").run().ending == "returned"


def test_sound_scripts_share_their_ranks():
    pids = []
    for identifier in ("training.6", "training.13"):
        exhibit(identifier).run()
        pids.append(hall._pool().pids)
    assert pids[0] == pids[1]


def unwritten(build, batches, mesh):
    raise NotImplementedError("training.6: an optimizer")


def raising(build, batches, mesh):
    raise KeyError("a fault of the learner")


def returning_nothing(build, batches, mesh):
    return None


def returning_parts(build, batches, mesh):
    weights = build().state_dict()
    return [0.0] * len(batches), {name: weight[:1] for name, weight in weights.items()}


def waiting_on_one_rank(build, batches, mesh):
    if mesh.get_local_rank() == 1:
        threading.Event().wait(60)
    return [], {}


def test_an_unwritten_script_is_not_started_and_keeps_its_message():
    assert judge(exercise("training.6"), unwritten, 0).state is State.NOT_STARTED
    with pytest.raises(NotImplementedError, match=r"training\.6: an optimizer"):
        report_on(unwritten, Task())


def test_an_exception_of_a_script_is_an_error_and_not_a_finding():
    verdict = judge(exercise("training.6"), raising, 0)
    assert verdict.state is State.ERROR and "a fault of the learner" in str(verdict)
    assert report_on(raising, Task()).ending == "raised"
    with pytest.raises(RanksError):
        hall.visit(raising, Task(), 0, (1,))


def test_a_script_without_a_result_has_the_wrong_type():
    verdict = judge(exercise("training.6"), returning_nothing, 0)
    assert dict(verdict.details)["Kind"] == Symptom.TYPE
    assert "NoneType" in report_on(returning_nothing, Task()).message


def test_weights_that_are_not_whole_are_reported():
    assert "not whole" in report_on(returning_parts, Task()).message


def test_a_script_that_waits_for_nobody_in_python_hangs_too():
    report = report_on(waiting_on_one_rank, Task(), deadline_s=0.5)
    assert report.ending == "hangs" and "rank 1 waited" in report.message


def test_one_process_agrees_with_a_hand_written_step():
    task = Task()
    [(inputs, targets)] = task.batches(3, 1)
    weights = {name: weight.clone().requires_grad_() for name, weight in Build(task, 3).saved().items()}
    hidden = (inputs @ weights["body.0.weight"].T + weights["body.0.bias"]).tanh()
    hidden = (hidden @ weights["body.2.weight"].T + weights["body.2.bias"]).tanh()
    loss = ((hidden @ weights["head.weight"].T + weights["head.bias"] - targets) ** 2).mean()
    gradients = torch.autograd.grad(loss, list(weights.values()))
    trained = train_alone(task, 3, 1)
    assert trained.losses == pytest.approx([float(loss.detach())])
    for (name, weight), gradient in zip(weights.items(), gradients):
        torch.testing.assert_close(trained.weights[name], weight.detach() - task.learning_rate * gradient)


def test_the_loss_of_tokens_is_the_mean_over_the_real_ones():
    scores, targets = torch.randn(2, 3, 4), torch.tensor([[1, 2, 3], [0, PADDING, PADDING]])
    real = [(0, 0), (0, 1), (0, 2), (1, 0)]
    parts = [-F.log_softmax(scores[row, place], 0)[targets[row, place]] for row, place in real]
    assert float(mean_loss(scores, targets)) == pytest.approx(float(sum(parts) / 4))


def test_short_texts_lie_on_the_second_rank():
    [(_, targets)] = Task(tokens=True).batches(0, 1)
    first, second = ((half != PADDING).sum() for half in targets.chunk(2))
    assert first == 5 * second
