"""A loss that stands for one on a busy device: each time the host looks at its value, that is counted."""

import weakref
from typing import ClassVar

import torch
from torch import Tensor

READS = {"item", "tolist", "numpy", "cpu", "is_nonzero", "equal", "allclose"}
READS |= {
    f"__{name}__" for name in ("array", "float", "int", "bool", "index", "complex", "repr", "format", "contains")
}


class Watched(Tensor):
    """A tensor that reports to `reads` when a value of it, or of what was computed from it, comes to the host."""

    reads: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name in READS or (name == "to" and _is_copy_to_host(args, kwargs or {})):
            cls.reads.append(name)
            plain = (one.as_subclass(Tensor) if isinstance(one, Watched) else one for one in args)
            return func(*plain, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs or {})


def _is_copy_to_host(args, kwargs) -> bool:
    return any(str(value) == "cpu" for value in (*args[1:], *kwargs.values()))


class _Graph:
    """What a loss keeps alive: the activations of its step."""


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, value, graph):
        ctx.graph = graph
        return weight * 0 + value

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 0, None, None


class Device:
    """Gives a loss for each step, and knows what the host did with it.

    steps: how many were run. reads: (steps done, how) of each look at a value. alive: the most graphs of losses
    that were held at once.
    """

    def __init__(self, losses: list[float]):
        self.losses, self.steps, self.alive = losses, 0, 0
        self._graphs: list[weakref.ref] = []
        self._weight = torch.ones((), requires_grad=True)
        self._reads: list[str] = []
        self.loss = type("Loss", (Watched,), {"reads": self._reads})

    @property
    def reads(self) -> int:
        """How often the host looked."""
        return len(self._reads)

    @property
    def ways(self) -> str:
        """By what, as `item`."""
        return ", ".join(dict.fromkeys(self._reads))

    def step(self) -> Tensor:
        """The next loss; a step more than there are losses gives the last one again."""
        graph = _Graph()
        value = self.losses[min(self.steps, len(self.losses) - 1)]
        self.steps += 1
        self._graphs.append(weakref.ref(graph))
        loss = _Loss.apply(self._weight, value, graph).as_subclass(self.loss)
        self.count()
        return loss

    def count(self) -> None:
        """Look how many graphs are alive."""
        self._graphs = [one for one in self._graphs if one() is not None]
        self.alive = max(self.alive, len(self._graphs))
