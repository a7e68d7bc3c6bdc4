"""FSDP by hand: the oracle against `fully_shard`, and the solution on modules that the check never draws."""

from pathlib import Path

import nbformat
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from helpers.course.checks import State, judge
from helpers.course.exercise import Symptom
from helpers.course.exercises.training.by_hand import EXERCISES, _cases
from helpers.course.exercises.training.by_hand_parts import (
    ByHandError,
    cut,
    owned,
    pad,
    run_written,
    shard_model,
    whole_parameters,
)
from helpers.course.exercises.training.by_hand_trials import Case, Run, Watch, loss_of, train_alone
from helpers.course.museum import hall
from helpers.training.model import build_model
from helpers.training.presets import load_preset
from helpers.training.ranks import Ranks

ROOT = Path(__file__).parents[2]
[EXERCISE] = EXERCISES
FAMILIES = [
    Case("three layers without bias", (("Linear", 5, 9, False), ("Linear", 9, 4, False), ("Linear", 4, 3, False))),
    Case("an embedding", (("Embedding", 7, 3),), steps=2),
    Case("two norms", (("LayerNorm", 6), ("RMSNorm", 6)), adam=True, steps=2),
    Case("one row", (("Linear", 3, 1),), steps=2, micro_batches=2),
]


@pytest.fixture(scope="module", autouse=True)
def ranks_end_with_the_module():
    yield
    hall.close()


@pytest.fixture(scope="module")
def pair():
    with Ranks(2) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def solution():
    """The answer cell of the solution notebook, run after its imports."""
    cells = nbformat.read(ROOT / "solutions/training/04_fsdp_by_hand.ipynb", as_version=4).cells
    sources = [cell.source for cell in cells if cell.cell_type == "code"]
    names: dict = {}
    for source in sources:
        if source.startswith(("import ", "from ")) or "# EXERCISE training.5:" in source:
            exec(source, names)
    return names["shard_parameter"]


def train(case, seed, sharding):
    """Train as the trials do, by other code: whole weights and the outputs of this rank."""
    rank, outputs = dist.get_rank(), []
    model = case.build(seed)
    rows = {name: len(parameter) for name, parameter in model.named_parameters()}
    model = sharding(model)
    optimizer = case.optimizer(model)
    for step in range(case.steps):
        for micro in range(case.micro_batches):
            output = model(case.inputs(seed, step, micro, rank))
            loss_of(output).backward()
            outputs.append(output.detach())
        optimizer.step()
        optimizer.zero_grad()
    if isinstance(next(model.parameters()), torch.distributed.tensor.DTensor):
        return {name: parameter.full_tensor().detach() for name, parameter in model.named_parameters()}, outputs
    return whole_parameters(model, rows), outputs


def by_pytorch(model):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


@pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case.name)
def test_the_oracle_trains_what_fully_shard_trains(case, pair):
    alone = pair.run(train_alone, case, 3)
    for rank, (weights, outputs) in enumerate(pair.run(train, case, 3, by_pytorch)):
        assert torch.equal(outputs[0], alone[rank].output)
        for name, weight in alone[rank].weights.items():
            torch.testing.assert_close(weights[name], weight, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case.name)
def test_the_solution_trains_what_one_process_trains(case, pair, solution):
    alone = pair.run(train_alone, case, 4)
    for rank, (weights, outputs) in enumerate(pair.run(train, case, 4, lambda model: shard_model(model, solution))):
        assert torch.equal(outputs[0], alone[rank].output)
        assert all(torch.equal(weights[name], weight) for name, weight in alone[rank].weights.items())


def test_the_solution_works_on_three_ranks(solution):
    case = Case("an MLP 5-7-4", (("Linear", 5, 7), ("LayerNorm", 7), ("Linear", 7, 4)), adam=True, steps=3)
    with Ranks(3) as ranks:
        alone = ranks.run(train_alone, case, 0)
        trained = ranks.run(train, case, 0, lambda model: shard_model(model, solution))
    for rank, (weights, _) in enumerate(trained):
        for name, weight in alone[rank].weights.items():
            torch.testing.assert_close(weights[name], weight, rtol=1e-4, atol=1e-6)


def gradients(sharding, preset):
    """This rank's gradients of a `MiniLLM`, and the rows of the mean that plain autograd gives."""
    model, rank = build_model(preset.model, seed=0), dist.get_rank()
    batches = [torch.randint(256, (2, 16), generator=torch.Generator().manual_seed(each)) for each in range(2)]
    both = [torch.autograd.grad(loss_of(model(batch)), list(model.parameters())) for batch in batches]
    means = [((first + second) / 2).chunk(2)[rank] for first, second in zip(*both)]
    model = sharding(model)
    loss_of(model(batches[rank])).backward()
    return [(parameter.grad, mean) for parameter, mean in zip(model.parameters(), means)]


def test_the_gradients_of_a_transformer_are_the_mean_bit_for_bit(pair, solution):
    for rank in pair.run(gradients, lambda model: shard_model(model, solution), load_preset("tiny")):
        assert len(rank) == 36 and all(torch.equal(got, mean) for got, mean in rank)


def test_the_oracle_agrees_with_a_gradient_by_hand(pair):
    """Of a linear layer y = xWᵀ and the mean of (y − ½)²: 2 / n · (y − ½)ᵀ x."""
    case = Case("linear", (("Linear", 3, 2, False),))
    weight, truth = case.build(5)[0].weight.detach(), 0
    for rank in range(2):
        inputs = case.inputs(5, 0, 0, rank)
        away = inputs @ weight.T - 0.5
        truth = truth + away.T @ inputs * 2 / away.numel() / 2
    for run in pair.run(train_alone, case, 5):
        torch.testing.assert_close(run.gradients["0.weight"], truth)


def plain(layer, name, shard):
    """No sharding: what `shard_model` cut is put together again, and stays."""
    parts = [torch.empty_like(shard.rows) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, shard.rows.detach())
    setattr(layer, name, nn.Parameter(torch.cat(parts)[: len(shard.whole)].to(shard.padded.dtype)))


def unwritten(layer, name, shard):
    raise NotImplementedError("training.5: gather, compute, free")


def raising(layer, name, shard):
    raise KeyError("a fault of the learner")


def test_a_model_left_whole_is_not_sharded():
    verdict = judge(EXERCISE, plain, 0)
    assert verdict.state is State.NOT_YET and dict(verdict.details)["Kind"] == Symptom.NOT_SHARDED


def test_an_unwritten_answer_is_not_started_and_leaves_the_ranks_open(pair):
    assert judge(EXERCISE, unwritten, 0).state is State.NOT_STARTED
    with pytest.raises(NotImplementedError, match=r"training\.5: gather, compute, free"):
        run_written(pair, train, FAMILIES[0], 0, lambda model: shard_model(model, unwritten))
    assert pair.pids


def test_an_exception_of_the_answer_is_an_error_and_not_a_finding():
    verdict = judge(EXERCISE, raising, 0)
    assert verdict.state is State.ERROR and "a fault of the learner" in str(verdict)


def test_the_cases_differ_with_the_seed_and_repeat_with_it():
    assert list(_cases(1)) == list(_cases(1)) != list(_cases(2))
    assert [case.even for case in _cases(0)] == sorted((case.even for case in _cases(0)), reverse=True)


def test_a_frozen_a_tied_and_an_unknown_parameter_are_refused():
    frozen, tied = nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 4, bias=False))
    frozen[0].bias.requires_grad_(False)
    tied[1].weight = tied[0].weight
    for model, where in ((frozen, "0.bias"), (tied, "tied to"), (nn.Sequential(nn.Conv1d(1, 1, 1)), "Conv1d")):
        with pytest.raises(ByHandError, match=where):
            list(owned(model))


def describe(rows):
    shard = cut(torch.arange(float(rows))[:, None], torch.bfloat16)
    sizes = shard.padded.untyped_storage().nbytes(), len(shard.padded), len(shard.whole)
    return shard.rows.tolist(), sizes, shard.whole.dtype, shard.rows.dtype


def test_a_cut_holds_its_rows_and_no_room(pair):
    first, second = pair.run(describe, 3)
    assert first[0] == [[0.0], [1.0]] and second[0] == [[2.0], [0.0]]
    assert first[1:] == second[1:] == ((0, 4, 3), torch.bfloat16, torch.float32)


def test_padding_stands_below():
    assert pad(torch.ones(1, 2), 3).tolist() == [[1, 1], [0, 0], [0, 0]]
    assert pad(whole := torch.ones(2), 2) is whole


def test_a_watch_counts_what_lives_and_shared_memory_once():
    watch = Watch(Run())
    with watch:
        tensor = torch.ones(10)
        view = tensor[:5]
        assert watch.live() == 40
        other = torch.ones(3)
        assert watch.live() == 52
        del tensor
        assert watch.live() == 52
        del view, other
    assert watch.live() == 0


def collectives_seen():
    run, rank = Run(), dist.get_rank()
    with Watch(run) as watch:
        watch.phase = "test"
        dist.all_gather_into_tensor(torch.empty(6), torch.ones(3))
        dist.all_gather([torch.empty(3), torch.empty(3)], torch.ones(3))
        dist.reduce_scatter_tensor(torch.empty(2, dtype=torch.bfloat16), torch.ones(4, dtype=torch.bfloat16))
        dist.all_reduce(torch.ones(5) * rank)
        dist.broadcast(torch.ones(7), 0)
    return [(sent.kind, sent.bytes, sent.dtype) for sent in run.sent]


def test_a_watch_names_collectives_and_the_bytes_of_the_whole(pair):
    for seen in pair.run(collectives_seen):
        assert seen == [
            ("all-gather", 24, "float32"),
            ("all-gather", 24, "float32"),
            ("reduce-scatter", 8, "bfloat16"),
            ("all-reduce", 20, "float32"),
            ("broadcast_", 28, "float32"),
        ]
