"""The same training on one process: what the scripts of the museum should reproduce."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from helpers.course.museum.bench import PADDING, Build, Net, Task


@dataclass(frozen=True)
class Trained:
    """losses: the mean loss of each step, before its update. first and weights: by name, fp32, whole."""

    losses: tuple[float, ...]
    first: dict[str, Tensor]
    weights: dict[str, Tensor]


def train_alone(task: Task, seed: int, steps: int) -> Trained:
    """Train the model of `task` for `steps` steps of plain SGD on whole batches, without any rank."""
    build = Build(task, seed)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=task.learning_rate)
    losses = []
    for inputs, targets in task.batches(seed, steps):
        loss = mean_loss(_forward(model, inputs, task.bf16), targets)
        loss.backward()
        if task.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), task.clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    return Trained(tuple(losses), build.saved(), weights)


def mean_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """The loss of a batch in fp32: squared error over all numbers, or cross-entropy over all real tokens."""
    if targets.is_floating_point():
        return F.mse_loss(scores.float(), targets)
    return F.cross_entropy(scores.float().flatten(0, 1), targets.flatten(), ignore_index=PADDING)


def _forward(model: Net, inputs: Tensor, bf16: bool) -> Tensor:
    """The scores; in bf16 by a cast of the fp32 weights, through which the gradient comes back."""
    if not bf16:
        return model(inputs)
    cast = {name: weight.bfloat16() for name, weight in model.named_parameters()}
    return functional_call(model, cast, inputs.bfloat16())
