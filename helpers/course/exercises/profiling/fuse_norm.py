"""Exercise profiling.8: add and normalise in one pass over memory."""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from helpers.course.exercise import Exercise, Finding, Symptom
from helpers.course.exercises.deadline import TooLong, within

if TYPE_CHECKING:
    from torch import Tensor

DEADLINE_S = 5.0
COUNT_DEADLINE_S = 20.0
CACHE = 2**18
SLACK = 1.2
OPERATORS = 24
FORMULA, BLOCKS, STAYS, PRECISION = 1, 2, 3, 4
AddNorm = Callable[["Tensor", "Tensor", "Tensor", float, int], tuple["Tensor", "Tensor"]]


@dataclass(frozen=True)
class Case:
    """One input: x and residual (rows, width) of `dtype`, drawn with the standard deviation `scale`."""

    rows: int
    width: int
    rows_at_once: int
    dtype: str = "float32"
    scale: float = 1.0
    zero_row: bool = False

    def __str__(self) -> str:
        kind = ", one row of zeros" if self.zero_row else f", values about {self.scale:g}" if self.scale != 1 else ""
        return f"({self.rows}, {self.width}) {self.dtype}, {self.rows_at_once} rows at once{kind}"

    def draw(self, seed: int) -> tuple["Tensor", "Tensor", "Tensor"]:
        """(x, residual, weight)."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        kind = getattr(torch, self.dtype)
        x, residual = (torch.randn(self.rows, self.width, generator=generator) * self.scale for _ in range(2))
        if self.zero_row:
            x[0] = residual[0] = 0
        weight = 0.5 + torch.rand(self.width, generator=generator)
        return x.to(kind), residual.to(kind), weight.to(kind)


def compulsory_bytes(rows: int, width: int, element_bytes: int) -> int:
    """What must move whatever the kernel does: x, residual and weight read, the norm and the sum written."""
    return element_bytes * (4 * rows * width + width)


def truth_of(x: "Tensor", residual: "Tensor", weight: "Tensor", eps: float) -> tuple["Tensor", "Tensor"]:
    """(normed, total) in float64."""
    total = x.double() + residual.double()
    root = (total.square().sum(1, keepdim=True) / total.shape[1] + eps).sqrt()
    return total / root * weight.double(), total


def examine_add_norm(answer: AddNorm, seed: int) -> Finding | None:
    """The first property that `answer` lacks: values, dtype, its inputs left alone; then bytes and operators."""
    for case in _cases(seed):
        if finding := _examine(case, answer, seed):
            return finding
    return _examine_traffic(Case(1000, 256, 16), answer, seed)


def _cases(seed: int) -> Iterator[Case]:
    yield Case(2, 4, 2)
    yield Case(1, 1, 4)
    yield Case(5, 8, 2)
    yield Case(4, 8, 2, zero_row=True)
    yield Case(4, 8, 2, scale=1e-3)
    yield Case(128, 256, 16, dtype="bfloat16")
    draw = random.Random(seed)
    for _ in range(4):
        yield Case(draw.randint(1, 70), draw.randint(1, 300), draw.randint(1, 20))


def _examine(case: Case, answer: AddNorm, seed: int) -> Finding | None:
    import torch

    x, residual, weight = case.draw(seed)
    handed = tuple(tensor.clone() for tensor in (x, residual, weight))
    try:
        got = within(DEADLINE_S, lambda: answer(*handed, 1e-5, case.rows_at_once))
    except TooLong:
        return Finding("The loop over blocks ends.", f"{case}: nothing after {DEADLINE_S:g} s", Symptom.HANGS, BLOCKS)
    if finding := _examine_form(case, got, x):
        return finding
    for name, before, after in zip(("x", "residual", "weight"), (x, residual, weight), handed):
        if not torch.equal(before, after):
            rule = "The inputs are read only: the caller still needs them."
            return Finding(rule, f"{case}: {name} changed", Symptom.INPUT_CHANGED, STAYS)
    return _examine_values(case, got, truth_of(x, residual, weight, 1e-5))


def _examine_form(case: Case, got: object, x: "Tensor") -> Finding | None:
    from torch import Tensor

    if not isinstance(got, tuple | list) or len(got) != 2 or not all(isinstance(one, Tensor) for one in got):
        rule = "The answer is two tensors: the norm, and the sum that the next block adds to."
        return Finding(rule, f"{case}: got a {type(got).__name__}", Symptom.TYPE, FORMULA)
    for name, one in zip(("the norm", "the sum"), got):
        if one.shape != x.shape:
            saw = f"{case}: {name} is {tuple(one.shape)}"
            return Finding("Both results have the shape of x.", saw, Symptom.SHAPE, BLOCKS)
        if one.dtype != x.dtype:
            saw = f"{case}: {name} is {str(one.dtype).removeprefix('torch.')}"
            return Finding("Both results have the dtype of x.", saw, Symptom.DTYPE, PRECISION)
    return None


def _examine_values(case: Case, got: tuple["Tensor", "Tensor"], truth: tuple["Tensor", "Tensor"]) -> Finding | None:
    """Within a rounding or two of the dtype: of bf16 what one rounding of each result gives."""
    import torch

    unit = 2.0**-8 if case.dtype == "bfloat16" else 1e-5
    for name, mine, right, roundings in zip(("the norm", "the sum"), got, truth, (2.3, 1.1)):
        error = (mine.double() - right).abs()
        wrong = ~(error <= roundings * unit * right.abs() + 1e-12 + 1e-6 * unit)
        if not wrong.any():
            continue
        rows = wrong.any(1).nonzero()[:, 0]
        saw = f"{case}: {name} is wrong in {len(rows)} of {case.rows} rows, first in row {int(rows[0])}"
        return _explain(case, name, saw, mine.double(), right, int(rows[0]), torch.isfinite(mine).all().item())
    return None


def _explain(
    case: Case, name: str, saw: str, mine: "Tensor", right: "Tensor", first_row: int, finite: bool
) -> Finding:
    if first_row and first_row >= case.rows // case.rows_at_once * case.rows_at_once:
        return Finding("The last block may be shorter, and is computed too.", saw, Symptom.TAIL, BLOCKS)
    if not finite:
        return Finding("A row of zeros has a norm too: eps is under the root.", saw, Symptom.NAN, FORMULA)
    if case.dtype == "bfloat16":
        rule = f"{name.capitalize()} is rounded once, at the end; squares and their mean are fp32."
        return Finding(rule, saw, Symptom.DTYPE, PRECISION)
    factor = float((mine * right).sum() / right.square().sum())
    if (
        math.isfinite(factor)
        and abs(factor - 1) > 1e-3
        and (mine - factor * right).abs().max() <= 1e-4 * right.abs().max()
    ):
        saw = f"{saw}: {factor:.3g} times what it should be"
        return Finding("The root is of the mean of the squares.", saw, Symptom.CONSTANT_FACTOR, FORMULA)
    return Finding("The norm is of x + residual, over each row, times the weight.", saw, Symptom.VALUE, FORMULA)


def _examine_traffic(case: Case, answer: AddNorm, seed: int) -> Finding | None:
    from helpers.course.exercises.profiling.cache_model import moved_by

    inputs = case.draw(seed)
    try:
        moved = within(
            COUNT_DEADLINE_S, lambda: moved_by(lambda: answer(*inputs, 1e-5, case.rows_at_once), cache_bytes=CACHE)
        )
    except TooLong:
        saw = f"{case}: nothing after {COUNT_DEADLINE_S:g} s"
        return Finding("The loop over blocks ends.", saw, Symptom.HANGS, BLOCKS)
    blocks = math.ceil(case.rows / case.rows_at_once)
    if moved.operators > OPERATORS * blocks:
        rule = "A block is several rows, so there are few operators."
        return Finding(rule, f"{case}: {moved.operators} operators for {blocks} blocks", Symptom.LAUNCHES, BLOCKS)
    least = compulsory_bytes(case.rows, case.width, 4)
    if moved.bytes > SLACK * least:
        passes = moved.bytes / (4 * case.rows * case.width)
        saw = f"{case}: {passes:.1f} passes over memory with a cache of {CACHE // 1024} KiB"
        return Finding("Memory is passed four times: two reads, two writes.", saw, Symptom.TRAFFIC, STAYS)
    return None


EXERCISES = (
    Exercise(
        id="profiling.8",
        title="RMSNorm and residual in one pass",
        hints=(
            "total = x + residual. Divide each row of total by the root of (the mean of its squares + eps), and "
            "multiply by weight.",
            "Make room for both results first. Then walk over the rows in steps of rows_at_once, and finish "
            "everything for a block before the next one. A slice that reaches past the end is simply shorter.",
            "Ask of every tensor: is it as large as x? Only the two inputs and the two results may be. A slice of a "
            "result is a place to write to: many operators take out=, and a slice can be assigned.",
            "Compute a block in fp32 with .float(), and round when you write into the results.",
        ),
        examine=examine_add_norm,
    ),
)
