"""What if: the same step on another GPU, in another dtype, fused, or with a larger batch, by the roofline.

`what_if` is a pure function of plain numbers, so a slider can call it at every move; `what_if_table` is the same
for readers who cannot move one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from helpers.errors import CourseError
from helpers.hardware.peaks import bandwidth, find_gpu, peak
from helpers.measure import Quantity, predicted

BYTES = {"fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5, "int4": 0.5}
LAUNCH_SECONDS = 3e-6
TRUSTED = 0.95


class WhatIfError(CourseError):
    """A change that cannot be predicted: a dtype without a size, a batch or share out of range, an empty step."""


@dataclass(frozen=True)
class Part:
    """One kernel, or kind of kernel, of a step.

    seconds: that it takes now. flop and bytes: its work. weights: of the bytes, those of weights, which a larger
    batch moves no more often. matrix: whether matrix units compute it; others run at the fp32 vector rate.
    launches: how many kernels it is.
    """

    name: str
    seconds: float
    flop: float
    bytes: float
    weights: float = 0.0
    matrix: bool = True
    launches: int = 1


@dataclass(frozen=True)
class Row:
    """One part before and after: seconds now and predicted, and what limits it then and now."""

    name: str
    before: float
    after: float
    limiter_before: str
    limiter: str


@dataclass(frozen=True)
class Outcome:
    """The predicted step.

    rows: its parts. batch: how many times as many items it holds. ceiling: the gain if every part reached its
    roof. notes: what the prediction rests on that may not hold.
    """

    rows: tuple[Row, ...]
    batch: float
    ceiling: float
    notes: tuple[str, ...]

    @property
    def before(self) -> float:
        """Seconds of the step now."""
        return sum(row.before for row in self.rows)

    @property
    def after(self) -> float:
        """Seconds of the step predicted."""
        return sum(row.after for row in self.rows)

    @property
    def gain(self) -> float:
        """Items a second after over before: with the batch unchanged the speed-up of the step."""
        return self.batch * self.before / self.after

    @property
    def limiter(self) -> str:
        """What limits the longest time of the predicted step: `compute`, `memory` or `launch`."""
        seconds: dict[str, float] = {}
        for row in self.rows:
            seconds[row.limiter] = seconds.get(row.limiter, 0.0) + row.after
        return max(seconds, key=seconds.__getitem__)

    @property
    def quantity(self) -> Quantity:
        """The gain, stamped as predicted."""
        return predicted(self.gain, "×", "roofline, each part as far from its roof as now")


def what_if(
    parts: Sequence[Part],
    gpu: str,
    dtype: str,
    *,
    to_gpu: str = "",
    to_dtype: str = "",
    to_weights: str = "",
    fuse: float = 0.0,
    batch: float = 1.0,
    sparse_peak: bool = False,
    launch: float = LAUNCH_SECONDS,
) -> Outcome:
    """Predict a step that ran on `gpu` in `dtype` after the changes; each part keeps its distance from its roof.

    to_gpu, to_dtype: where they change; a dtype scales every byte. to_weights: dtype in which weights are stored
    only. fuse: share of the bytes of the parts outside the matrix units that fusion saves, 0 to 1. batch: factor.
    sparse_peak: count with the peak of 2:4 sparsity, to see what that mistake promises. launch: least seconds of
    a kernel. Raises `WhatIfError` for numbers out of range or a dtype without a size, `PeakError` for a GPU or a
    peak that the table lacks.
    """
    _require(parts, fuse, batch, dtype, to_dtype or dtype, to_weights or dtype)
    after_gpu, after_dtype = to_gpu or gpu, to_dtype or dtype
    stored = to_weights or after_dtype
    rows, notes, least_after = [], [], 0.0
    for part in parts:
        moved = _bytes(part, BYTES[after_dtype] / BYTES[dtype], BYTES[stored] / BYTES[dtype], fuse, batch)
        old = _times(part, part.flop, part.bytes, gpu, dtype, launch)
        new = _times(part, batch * part.flop, moved, after_gpu, after_dtype, launch, 2.0 if sparse_peak else 1.0)
        now, then = max(old.values()), max(new.values())
        limits = (max(times, key=times.__getitem__) for times in (old, new))
        rows.append(Row(part.name, part.seconds, part.seconds * then / now, *limits))
        least_after += then
        if part.seconds < TRUSTED * now:
            notes.append(
                f"{part.name} took less than a {find_gpu(gpu).name} needs in {dtype}: check its work and time"
            )
    notes += _notes(parts, after_gpu, after_dtype, sparse_peak, bool(fuse), batch)
    return Outcome(tuple(rows), batch, batch * sum(part.seconds for part in parts) / least_after, tuple(notes))


def _require(parts: Sequence[Part], fuse: float, batch: float, *dtypes: str) -> None:
    if not parts or any(not part.seconds > 0 for part in parts):
        raise WhatIfError("a step needs parts that take time", mend="give each Part the seconds it was measured at")
    if not 0 <= fuse <= 1:
        raise WhatIfError(f"fuse is {fuse!r}", mend="give the share of the bytes that fusion saves, 0 to 1")
    if not (math.isfinite(batch) and batch > 0):
        raise WhatIfError(f"batch is {batch!r}", mend="give the factor by which the batch grows, above 0")
    for dtype in dtypes:
        if dtype not in BYTES:
            raise WhatIfError(f"the size of {dtype!r} is not known", mend=f"use one of {', '.join(BYTES)}")


def _bytes(part: Part, ratio: float, weight_ratio: float, fuse: float, batch: float) -> float:
    """Weights are moved once whatever the batch; what fusion saves lies between vector kernels."""
    kept = 1.0 if part.matrix else 1.0 - fuse
    return part.weights * weight_ratio + batch * (part.bytes - part.weights) * ratio * kept


def _times(part: Part, flop: float, moved: float, gpu: str, dtype: str, launch: float, trap: float = 1.0) -> dict:
    rate = trap * peak(gpu, dtype).value if part.matrix else peak(gpu, "fp32").value
    return {"compute": flop / rate, "memory": moved / bandwidth(gpu).value, "launch": part.launches * launch}


def _notes(parts: Sequence[Part], gpu: str, dtype: str, sparse: bool, fused: bool, batch: float) -> tuple[str, ...]:
    found = []
    if sparse:
        found.append(
            "the peak with 2:4 sparsity is for matrices of which half is zero: dense ones gain nothing of it"
        )
    cells = [bandwidth(gpu)] + ([peak(gpu, dtype)] if any(part.matrix for part in parts) else [])
    doubtful = [cell.dtype or "bandwidth" for cell in cells if not cell.source.verified]
    if doubtful:
        found.append(f"of the {find_gpu(gpu).name} the {' and '.join(doubtful)} is not verified")
    if fused and all(part.matrix for part in parts):
        found.append("every part runs on matrix units: there is nothing that fusion would save")
    if batch > 1 and not any(part.weights for part in parts):
        found.append("no part has weights: a larger batch shares nothing but launches")
    return tuple(found)


def what_if_table(
    parts: Sequence[Part], gpu: str, dtype: str, changes: Mapping[str, Mapping[str, object]]
) -> tuple[tuple[str, ...], tuple[tuple[object, ...], ...]]:
    """(headers, rows) for `show_table`: each change of `changes` by name, with the arguments of `what_if`."""
    rows = []
    for name, change in {"as it is": {}, **changes}.items():
        outcome = what_if(parts, gpu, dtype, **change)
        least = predicted(outcome.ceiling, "×", "every part at its roof")
        after = predicted(outcome.after, "s", "roofline")
        rows.append((name, outcome.limiter, after, outcome.quantity, least, "; ".join(outcome.notes)))
    return ("change", "limited by", "step", "items a second", "at most", "mind"), tuple(rows)
