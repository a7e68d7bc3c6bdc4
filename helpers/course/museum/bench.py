"""What the scripts of the museum share: a small model, its data, and two helpers for the results."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

FEATURES, WIDTH, CLASSES, CONTEXT = 6, 10, 4, 5
PADDING = -100


@dataclass(frozen=True)
class Task:
    """What is to be trained, and by which rule; a script and its oracle must agree on it.

    tokens: classify each token of (rows, CONTEXT) ids, instead of a linear map of (rows, FEATURES) signs;
    padding has the target `PADDING`. rows: of a batch, all ranks together. learning_rate: of SGD.
    clip: the largest norm of a gradient, or None. bf16: compute in bf16, keep fp32 weights.
    """

    tokens: bool = False
    rows: int = 32
    learning_rate: float = 0.5
    clip: float | None = None
    bf16: bool = False

    def batches(self, seed: int, steps: int) -> list[tuple[Tensor, Tensor]]:
        """(inputs, targets) of each step, all rows: the same for the same seed."""
        draw = torch.Generator().manual_seed(seed)
        teacher = torch.randn(FEATURES, CLASSES, generator=draw)
        return [self._batch(draw, teacher) for _ in range(steps)]

    def _batch(self, draw: torch.Generator, teacher: Tensor) -> tuple[Tensor, Tensor]:
        if not self.tokens:
            inputs = torch.randint(2, (self.rows, FEATURES), generator=draw) * 2.0 - 1.0
            return inputs, inputs @ teacher / FEATURES**0.5
        ids = torch.randint(FEATURES, (self.rows, CONTEXT), generator=draw)
        targets = teacher.argmax(1)[ids]
        lengths = torch.tensor([CONTEXT] * (self.rows // 2) + [1] * (self.rows - self.rows // 2))
        return ids, targets.where(torch.arange(CONTEXT) < lengths[:, None], PADDING)


class Net(nn.Module):
    """Two layers and a head: (rows, FEATURES) numbers, or (rows, CONTEXT) ids, to CLASSES scores."""

    def __init__(self, tokens: bool):
        super().__init__()
        first = nn.Embedding(FEATURES, WIDTH) if tokens else nn.Linear(FEATURES, WIDTH)
        self.body = nn.Sequential(first, nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        """Scores of shape (rows, CLASSES), or (rows, CONTEXT, CLASSES)."""
        return self.head(self.body(inputs))


class Build:
    """Makes the model of a task, and remembers every model that it made.

    `build()` is the model; `build(5)` has other weights, always the same ones for the same number.
    """

    def __init__(self, task: Task, seed: int):
        self.task, self.seed = task, seed
        self.models: list[Net] = []
        self.first_weights: list[float] = []

    def __call__(self, number: int = 0) -> Net:
        torch.manual_seed(1000 * self.seed + number)
        model = Net(self.task.tokens)
        self.models.append(model)
        if not model.head.weight.is_meta:
            self.first_weights.append(float(sum(weight.detach().sum() for weight in model.parameters())))
        return model

    def saved(self) -> dict[str, Tensor]:
        """The weights of `build()`, whole, as a checkpoint holds them; the model is not remembered."""
        return {name: weight.detach() for name, weight in Build(self.task, self.seed)().named_parameters()}


def average(loss: Tensor) -> float:
    """The mean of one number over the ranks; every rank must call it."""
    return total(loss) / dist.get_world_size()


def total(value: Tensor) -> float:
    """The sum of one number over the ranks; every rank must call it."""
    value = value.detach().double().clone()
    dist.all_reduce(value)
    return float(value)


def whole(model: nn.Module) -> dict[str, Tensor]:
    """The weights of a sharded model, gathered, by name; every rank must call it."""
    return {name: weight.full_tensor().detach() for name, weight in model.named_parameters()}
