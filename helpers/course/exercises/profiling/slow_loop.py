"""A colleague's training loop, slow for three reasons; the lab looks for them in traces before it reads this."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import record_function

from helpers.course.exercises.profiling.slow_parts import attend, batches, run
from helpers.profiling.intervals import cover
from helpers.profiling.trace import Trace
from helpers.training.data import standard_library
from helpers.training.model import Attention, ModelConfig, build_model

PARTS = ("load", "forward", "backward", "update", "report")
MODEL = ModelConfig(width=64, blocks=1, heads=2, context=32)
BATCH, CHARACTERS = 16, 50_000

Encode = Callable[[str], list[int]]
Batch = tuple[Tensor, Tensor]


def text() -> str:
    """50 000 characters of the Python standard library's own sources."""
    return bytes(standard_library().train[:CHARACTERS].tolist()).decode("latin-1")


def encode(piece: str) -> list[int]:
    """A token for each character: its code in Latin-1, 0 to 255."""
    return [ord(character) for character in piece]


class Mixed(nn.Module):
    """An `Attention` of the course whose mixing over tokens is given: `attend(q, k, v)`, each (B, H, T, D)."""

    def __init__(self, attention: Attention, mix: Callable[[Tensor, Tensor, Tensor], Tensor]):
        super().__init__()
        self.inner, self.mix = attention, mix

    def forward(self, x: Tensor) -> Tensor:
        rows, time, _ = x.shape
        inner = self.inner
        heads = (y.view(rows, time, -1, inner.head_width) for y in (inner.query(x), inner.key(x), inner.value(x)))
        mixed = self.mix(*(y.transpose(1, 2) for y in heads))
        return inner.out(mixed.transpose(1, 2).reshape(rows, time, -1))


class Training:
    """A small `MiniLLM` that learns bytes, a step at a time; the parts of a step are named in its traces.

    batches and attend: the colleague's, or better ones. The same `seed` gives the same weights.
    """

    def __init__(self, batches: Callable[..., Iterator[Batch]] = batches, attend=attend, device="cpu", seed: int = 0):
        self.device = device
        self.model = build_model(MODEL, seed)
        for block in self.model.blocks:
            block.attention = Mixed(block.attention, attend)
        self.model.to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.batches = batches(text(), encode, MODEL.context, BATCH)

    def step(self) -> Tensor:
        """Train on the next batch; the loss as a tensor on the device, with its graph."""
        with record_function("load"):
            inputs, targets = (part.to(self.device) for part in next(self.batches))
        with record_function("forward"):
            logits = self.model(inputs)
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        with record_function("backward"):
            loss.backward()
        with record_function("update"):
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss


def losses(training: Training, steps: int, run: Callable = run) -> list[float]:
    """The loss of each step, through `run`."""
    found: list[float] = []
    run(training.step, steps, 1, lambda done, loss: found.append(loss))
    return found


@dataclass(frozen=True)
class PartTime:
    """One part of a step, as a trace shows it; all numbers are of one step.

    seconds: from its start to its end. busy: of these, some operator ran, or some kernel where a GPU computed.
    operators: that began in it. reads: of them, those that bring one value to the host.
    """

    name: str
    seconds: float
    busy: float
    operators: float
    reads: float


def parts_of(trace: Trace, steps: int) -> tuple[PartTime, ...]:
    """The parts of a trace of `steps` steps, in their order; a part that was not recorded has no time."""
    columns = trace.columns
    work = columns.device_work if len(columns.device_work) else columns.operators
    busy = cover(work.start, work.end)
    operators, found = columns.operators, []
    reads = operators.name.where(lambda name: name == "aten::_local_scalar_dense")
    for part in PARTS:
        mine = columns.annotations.take(columns.annotations.name.where(lambda name, part=part: name == part))
        spans = cover(mine.start, mine.end)
        inside = spans.touches(operators.start, operators.start + 1)
        times = (spans.length / 1e9, spans.shared(busy) / 1e9)
        counts = (int(inside.sum()), int((inside & reads).sum()))
        found.append(PartTime(part, *(number / steps for number in (*times, *counts))))
    return tuple(found)


def source_of(part: str) -> str:
    """The colleague's source of `batches`, `run` or `attend`."""
    return inspect.getsource({"batches": batches, "run": run, "attend": attend}[part])
