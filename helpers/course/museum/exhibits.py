"""The exhibits: each a training script with one fault, as it is found in real code.

A script gets `build` (`build()` is the model), `batches` (inputs and targets of each step, the rows
of all ranks together) and `mesh` (two ranks). It returns the mean loss of each step over all ranks,
and the trained weights, whole, by name; on every rank the same.
"""

import inspect
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

from helpers.course.museum.alone import train_alone
from helpers.course.museum.bench import PADDING, Task, average, whole
from helpers.course.museum.hall import DEADLINE_S, Script, Visit, visit
from helpers.training.ranks import RanksError

STEPS = 6
PLAIN = Task()


def optimizer_first(build, batches, mesh):
    """The optimizer is made, then the model is sharded."""
    rank = mesh.get_local_rank()
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    fully_shard(model, mesh=mesh)
    losses = []
    for inputs, targets in batches:
        inputs, targets = inputs.chunk(2)[rank], targets.chunk(2)[rank]
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(average(loss))
    return losses, whole(model)


def same_rows(build, batches, mesh):
    """Both ranks take the first half of every batch."""
    model = fully_shard(build(), mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for inputs, targets in batches:
        share = len(inputs) // mesh.size()
        inputs, targets = inputs[:share], targets[:share]
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(average(loss))
    return losses, whole(model)


def own_weights(build, batches, mesh):
    """Each rank seeds with its own number before it builds the model."""
    rank = mesh.get_local_rank()
    model = build(rank)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for inputs, targets in batches:
        inputs, targets = inputs.chunk(2)[rank], targets.chunk(2)[rank]
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(average(loss))
    return losses, whole(model)


def saved_by_one(build, batches, mesh):
    """Rank 0 collects the weights, as it would to save them."""
    rank = mesh.get_local_rank()
    model = fully_shard(build(), mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses, weights = [], {}
    for inputs, targets in batches:
        inputs, targets = inputs.chunk(2)[rank], targets.chunk(2)[rank]
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(average(loss))
    if rank == 0:
        weights = {name: weight.full_tensor() for name, weight in model.named_parameters()}
    return losses, weights


def uneven_rows(build, batches, mesh):
    """31 rows on two ranks, and the loss of every row is collected for the log."""
    rank = mesh.get_local_rank()
    model = fully_shard(build(), mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for inputs, targets in batches:
        rows = len(inputs)
        inputs, targets = inputs.chunk(2)[rank], targets.chunk(2)[rank]
        per_row = (model(inputs) - targets).square().mean(1)
        (per_row.sum() * 2 / rows).backward()
        optimizer.step()
        optimizer.zero_grad()
        everyone = [torch.empty_like(per_row) for _ in range(2)]
        dist.all_gather(everyone, per_row.detach())
        losses.append(float(torch.cat(everyone).mean()))
    return losses, whole(model)


def local_norm(build, batches, mesh):
    """The gradient is clipped by the norm of the part that lies on this rank."""
    rank = mesh.get_local_rank()
    model = fully_shard(build(), mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for inputs, targets in batches:
        inputs, targets = inputs.chunk(2)[rank], targets.chunk(2)[rank]
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        gradients = [weight.grad.to_local() for weight in model.parameters()]
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
        for gradient in gradients:
            gradient.mul_(min(1.0, 0.1 / norm))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(average(loss))
    return losses, whole(model)


def mean_of_means(build, batches, mesh):
    """Rank 1 has the short texts; each rank takes the mean over its own tokens."""
    rank = mesh.get_local_rank()
    model = fully_shard(build(), mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for inputs, targets in batches:
        inputs, targets = inputs.chunk(2)[rank], targets.chunk(2)[rank]
        scores = model(inputs).flatten(0, 1)
        loss = F.cross_entropy(scores, targets.flatten(), ignore_index=PADDING)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(average(loss))
    return losses, whole(model)


def sum_of_means(build, batches, mesh):
    """Two micro-batches a step, and the gradients of both add up."""
    rank = mesh.get_local_rank()
    model = fully_shard(build(), mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for inputs, targets in batches:
        inputs, targets = inputs.chunk(2)[rank], targets.chunk(2)[rank]
        step_loss = 0.0
        for few, wanted in zip(inputs.chunk(2), targets.chunk(2)):
            loss = F.mse_loss(model(few), wanted)
            loss.backward()
            step_loss += average(loss) / 2
        optimizer.step()
        optimizer.zero_grad()
        losses.append(step_loss)
    return losses, whole(model)


def coarse_weights(build, batches, mesh):
    """The model is cast to bf16, and the optimizer works on what is left."""
    rank = mesh.get_local_rank()
    model = build().bfloat16()
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.003)
    losses = []
    for inputs, targets in batches:
        inputs, targets = inputs.chunk(2)[rank], targets.chunk(2)[rank]
        loss = F.mse_loss(model(inputs.bfloat16()).float(), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(average(loss))
    return losses, whole(model)


def forgotten_head(build, batches, mesh):
    """Built without memory, sharded, given memory, filled from a checkpoint: all but the head."""
    rank, saved = mesh.get_local_rank(), build.saved()
    with torch.device("meta"):
        model = build()
    fully_shard(model, mesh=mesh).to_empty(device="cpu")
    for name, weight in model.body.named_parameters(prefix="body"):
        weight.data.to_local().copy_(saved[name].chunk(2)[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for inputs, targets in batches:
        inputs, targets = inputs.chunk(2)[rank], targets.chunk(2)[rank]
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(average(loss))
    return losses, whole(model)


@dataclass(frozen=True)
class Report:
    """What a visitor sees of a script on two ranks, next to one process on the same data.

    ending: `returned`, `hangs`, `aborts` or `raised`. message: of the ranks when they did not return,
    or what is wrong with the results.
    losses: of each rank and step. alone: of one process. moved: the share of the weights that differ from
    those of one process before training, in their own dtype.
    """

    title: str
    ending: str
    message: str = ""
    losses: tuple[tuple[float, ...], ...] = ()
    alone: tuple[float, ...] = ()
    moved: float = 0.0

    def __str__(self) -> str:
        lines = [f"{self.title}: {self.ending}"]
        if self.message:
            return "\n".join([*lines, *("  " + line for line in self.message.splitlines())])
        lines += [f"  rank {rank}       {_numbers(losses)}" for rank, losses in enumerate(self.losses)]
        lines += [f"  one process  {_numbers(self.alone)}", f"  weights that moved: {self.moved:.0%}"]
        return "\n".join(lines)


def _numbers(losses: tuple[float, ...]) -> str:
    return "  ".join(f"{loss:.4f}" for loss in losses)


@dataclass(frozen=True)
class Exhibit:
    """One script with its fault.

    exercise: the id of the exercise that mends it. sees: what its owner notices, in one sentence. task: what it
    should train. deadline_s: after so many seconds a script that does not answer counts as hanging.
    """

    exercise: str
    title: str
    sees: str
    script: Script
    task: Task = PLAIN
    deadline_s: float = DEADLINE_S

    @property
    def code(self) -> str:
        """The script as text."""
        return inspect.getsource(self.script).rstrip()

    def run(self, seed: int = 0) -> Report:
        """Run the script on two ranks and tell how it went; a hang costs `deadline_s`."""
        return report_on(self.script, self.task, self.title, seed, self.deadline_s)


def report_on(
    script: Script, task: Task, title: str = "your script", seed: int = 0, deadline_s: float = DEADLINE_S
) -> Report:
    """Run any script for this task and tell how it went."""
    try:
        seen = visit(script, task, seed, (STEPS,), deadline_s)
    except RanksError as error:
        return Report(title, "raised", str(error))
    if seen.ending != "returned":
        return Report(title, seen.ending, seen.message)
    return _compared(title, seen, task, seed)


def _compared(title: str, seen: Visit, task: Task, seed: int) -> Report:
    oracle = train_alone(task, seed, STEPS)
    results = [attempt.result for attempt in seen.attempts[STEPS]]
    for rank, result in enumerate(results):
        if fault := _fault(result, oracle.first):
            return Report(title, seen.ending, f"rank {rank} {fault}")
    weights = results[0][1]
    pairs = [(weights[name], first.to(weights[name].dtype)) for name, first in oracle.first.items()]
    share = sum(int((now != first).sum()) for now, first in pairs) / sum(now.numel() for now, _ in pairs)
    return Report(title, seen.ending, "", tuple(tuple(losses) for losses, _ in results), oracle.losses, share)


def _fault(result: object, first: dict[str, Tensor]) -> str:
    """Why the result of a rank cannot be shown, or ''."""
    if not isinstance(result, tuple) or len(result) != 2:
        return f"returned a {type(result).__name__}, not (losses, weights)"
    losses, weights = result
    if not isinstance(losses, list) or not all(isinstance(loss, int | float) for loss in losses):
        return "returned losses that are not a list of numbers"
    if not isinstance(weights, dict):
        return "returned weights that are not a dict"
    part = [name for name, tensor in first.items() if getattr(weights.get(name), "shape", None) != tensor.shape]
    return f"returned weights that are not whole: {', '.join(part)}" if part else ""


EXHIBITS = (
    Exhibit(
        "training.6",
        "The optimizer that holds yesterday's weights",
        "No error; the loss wanders, and does not fall however long it trains.",
        optimizer_first,
    ),
    Exhibit(
        "training.7",
        "Two ranks, one half of the data",
        "The loss falls. Half of the data is never read.",
        same_rows,
    ),
    Exhibit(
        "training.8",
        "Two models in one",
        "The loss falls, from another start than the seed promises.",
        own_weights,
    ),
    Exhibit(
        "training.9",
        "The save that never ends",
        "Training is fine. At the first checkpoint everything stops, without a message.",
        saved_by_one,
    ),
    Exhibit(
        "training.10",
        "The last batch of the epoch",
        "A whole epoch is fine; then, on the last, smaller batch, the processes die.",
        uneven_rows,
        Task(rows=31),
    ),
    Exhibit(
        "training.11",
        "A ruler on every rank",
        "The loss falls; more ranks need another clipping threshold, and nobody knows why.",
        local_norm,
        Task(clip=0.1),
    ),
    Exhibit(
        "training.12",
        "One vote a rank",
        "The loss falls; the same data on another number of ranks gives another model.",
        mean_of_means,
        Task(tokens=True),
    ),
    Exhibit(
        "training.13",
        "Twice the step",
        "The loss falls, faster or not at all: the learning rate seems to depend on the micro-batches.",
        sum_of_means,
    ),
    Exhibit(
        "training.14",
        "Steps too small to see",
        "Half of the memory, and a loss that stops falling early.",
        coarse_weights,
        Task(learning_rate=0.003, bf16=True),
    ),
    Exhibit(
        "training.15",
        "Memory is not initialisation",
        "Sometimes it trains badly, sometimes the loss is not a number; another machine, another story.",
        forgotten_head,
    ),
)


def exhibit(exercise: str) -> Exhibit:
    """The exhibit of an exercise, as `training.6`; `KeyError` when there is none."""
    return {item.exercise: item for item in EXHIBITS}[exercise]
