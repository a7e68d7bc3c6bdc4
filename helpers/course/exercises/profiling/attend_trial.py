"""How a mended attention is examined: the same numbers, and a number of operators that does not grow."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from helpers.course.exercise import Finding, Symptom
from helpers.course.exercises.deadline import TooLong, within

if TYPE_CHECKING:
    from torch import Tensor

DEADLINE_S = 20.0
TOLERANCE = 2e-5
SLACK = 10  # operators: less than two for each further token, head or sequence


@dataclass(frozen=True)
class Shape:
    """One input: queries, keys and values of (B, H, T, D), scaled by `size`."""

    sequences: int
    heads: int
    tokens: int
    features: int
    size: float = 1.0

    def __str__(self) -> str:
        shape = (self.sequences, self.heads, self.tokens, self.features)
        return f"(B, H, T, D) = {shape}" + f" with values near {self.size:g}" * (self.size != 1)

    def draw(self, seed: int) -> "tuple[Tensor, ...]":
        """q, k and v, and a gradient for the result."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        shape = (self.sequences, self.heads, self.tokens, self.features)
        return tuple(
            scale * torch.randn(shape, generator=generator, dtype=torch.float32)
            for scale in (self.size, self.size, 1.0, 1.0)
        )


def attended(q: "Tensor", k: "Tensor", v: "Tensor", ahead: int = 0, scale: float | None = None) -> "Tensor":
    """Attention in float64, a row of one token at a time: the oracle of profiling.4.

    ahead: how far a token sees beyond itself, 0 when it is causal. scale: of the scores, 1 / √D without one.
    """
    import torch

    q, k, v = (x.double() for x in (q, k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    rows = []
    for t in range(q.shape[-2]):
        end = min(k.shape[-2], max(1, t + 1 + ahead))
        weights = torch.softmax(scale * (k[..., :end, :] @ q[..., t, :, None])[..., 0], dim=-1)
        rows.append((weights[..., None] * v[..., :end, :]).sum(dim=-2))
    return torch.stack(rows, dim=-2)


def examine_attend(answer: Callable, seed: int) -> Finding | None:
    """The first input on which `answer(q, k, v)` is wrong, does not train, or runs an operator for each token."""
    chance = random.Random(seed)
    try:
        for shape in _shapes(chance):
            if finding := within(DEADLINE_S, partial(_right, answer, shape, chance.randrange(2**31))):
                return finding
        return within(DEADLINE_S, partial(_few, answer))
    except TooLong:
        return Finding("The result comes at once.", f"nothing after {DEADLINE_S:g} s", Symptom.HANGS, 1)


def _shapes(chance: random.Random) -> Iterator[Shape]:
    """Small ones first."""
    yield from (Shape(1, 1, 1, 2), Shape(1, 1, 4, 4), Shape(2, 3, 5, 8), Shape(1, 2, 6, 4, 40.0))
    for _ in range(3):
        yield Shape(*(chance.randint(1, 4) for _ in range(2)), chance.randint(2, 12), chance.randint(2, 16))


def _right(answer: Callable, shape: Shape, seed: int) -> Finding | None:
    import torch

    q, k, v, gradient = shape.draw(seed)
    inputs = tuple(x.clone().requires_grad_() for x in (q, k, v))
    got = answer(*inputs)
    if not isinstance(got, torch.Tensor):
        return Finding("The answer is one tensor.", f"{shape}: got a {type(got).__name__}", Symptom.TYPE, 1)
    if got.shape != q.shape:
        return Finding("The result is (B, H, T, D).", f"{shape}: got {tuple(got.shape)}", Symptom.SHAPE, 3)
    if got.dtype != q.dtype:
        return Finding("The result keeps the dtype.", f"{shape}: got {got.dtype}", Symptom.DTYPE, 3)
    if not all(a.detach().equal(b) for a, b in zip(inputs, (q, k, v))):
        return Finding("Queries, keys and values are read only.", str(shape), Symptom.INPUT_CHANGED, 3)
    if not got.isfinite().all():
        return Finding("Every weight is a number.", f"{shape}: got NaN or infinity", Symptom.NAN, 4)
    if not _close(got, attended(q, k, v)):
        return _explain(got, q, k, v, shape)
    return _trains(got, inputs, gradient, shape)


def _close(got: "Tensor", expected: "Tensor") -> bool:
    return bool((got.double() - expected).abs().max() <= TOLERANCE * max(1.0, float(expected.abs().max())))


def _explain(got: "Tensor", q, k, v, shape: Shape) -> Finding:
    worst = (got.double() - attended(q, k, v)).abs().amax(dim=(0, 1, 3))
    first = int((worst > TOLERANCE).nonzero()[0])
    saw = f"{shape}: wrong from token {first} on"
    if _close(got, attended(q, k, v, shape.tokens)):
        return Finding("A token sees itself and what came before, nothing later.", saw, Symptom.VALUE, 2)
    for ahead in (1, -1):
        if shape.tokens > 2 and _close(got[..., 1:, :], attended(q, k, v, ahead)[..., 1:, :]):
            return Finding("A token sees itself, and nothing later.", saw, Symptom.OFF_BY_ONE, 2)
    if any(_close(got, attended(q, k, v, scale=scale)) for scale in (1.0, 1 / q.shape[-1], q.shape[-1] ** 0.5)):
        return Finding("Scores are divided by the square root of D.", saw, Symptom.CONSTANT_FACTOR, 3)
    return Finding("The numbers are those of the slow attention.", saw, Symptom.VALUE, 3)


def _trains(got: "Tensor", inputs, gradient: "Tensor", shape: Shape) -> Finding | None:
    import torch

    whole = tuple(x.detach().double().requires_grad_() for x in inputs)
    expected = torch.autograd.grad(attended(*whole), whole, gradient.double())
    if not got.requires_grad:
        saw = f"{shape}: the result has no graph"
        return Finding("The gradient flows back to q, k and v.", saw, Symptom.TRAINS_NOTHING, 3)
    found = torch.autograd.grad(got, inputs, gradient, allow_unused=True)
    for name, a, b in zip("qkv", found, expected):
        if a is None or not _close(a, b):
            saw = f"{shape}: the gradient of {name} is not right"
            return Finding("The gradient flows back to q, k and v.", saw, Symptom.TRAINS_NOTHING, 3)
    return None


def _few(answer: Callable) -> Finding | None:
    """Operators of forward and backward, by the number of tokens, heads and sequences."""
    small = Shape(2, 2, 8, 8)
    for what, more in (
        ("token", Shape(2, 2, 32, 8)),
        ("head", Shape(2, 8, 8, 8)),
        ("sequence", Shape(8, 2, 8, 8)),
    ):
        few, many = operators_of(answer, small), operators_of(answer, more)
        if many > few + SLACK:
            saw = f"{few} operators for {small}, {many} for {more}"
            return Finding(f"The number of operators does not grow with every {what}.", saw, Symptom.LAUNCHES, 1)
    return None


def operators_of(answer: Callable, shape: Shape) -> int:
    """Operators of one forward and backward of `answer` that reach a backend, as torch's dispatcher sees them.

    A trace shows more: also those that only call others. But a recording writes to the error stream of a cell.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.count += 1
            return func(*args, **(kwargs or {}))

    q, k, v, gradient = shape.draw(0)
    inputs = tuple(x.requires_grad_() for x in (q, k, v))
    with Counting() as counting:
        answer(*inputs).backward(gradient)
    return counting.count
