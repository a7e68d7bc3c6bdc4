"""FLOP that counters saw, and FLOP that a work model expects: where they agree, and what explains a difference."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from helpers.measure import Quantity, Table, predicted
from helpers.profiling.columns import NONE
from helpers.profiling.counters.record import KernelRecord
from helpers.profiling.counters_join import CounterJoin, Pair
from helpers.profiling.diagnosis import diagnose
from helpers.profiling.diagnosis.evidence import stamped, value
from helpers.profiling.diagnosis.table import short_name

FP32, FP64 = ("fadd", "fmul", "ffma"), ("dadd", "dmul", "dfma")
PER_THREAD = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
TENSOR_FLOP = re.compile(r"^sm__ops_path_tensor_.*\.sum$")
BY_SPARSITY = re.compile(r"_sparsity_(on|off)\.sum$")


def counted_flop(record: KernelRecord) -> tuple[float | None, bool]:
    """(FLOP that the counters saw, whether matrix instructions are among them).

    FP32 and FP64 instructions of threads, a multiply-add as two, and tensor operations where they were counted.
    Half-precision instructions are left out: compilers use them to move integers. None where nothing was counted.
    """
    scalar = [_thread_flop(record, operation) for operation in (*FP32, *FP64)]
    counted = [number for number in scalar if number is not None]
    tensor = _tensor_operations(record)
    if not counted and not tensor:
        return None, False
    return sum(counted) + sum(tensor), bool(tensor) or value(record, "tensor_percent") == 0.0


def _tensor_operations(record: KernelRecord) -> list[float]:
    """One number a path (types in and out): its total, or the sum of its split by sparsity without one."""
    totals: dict[str, float] = {}
    split: dict[str, float] = {}
    for name, number in record.metrics.items():
        if TENSOR_FLOP.match(name) and math.isfinite(number):
            path = BY_SPARSITY.sub(".sum", name)
            kind = totals if path == name else split
            kind[path] = kind.get(path, 0.0) + number
    return list((split | totals).values())


def _thread_flop(record: KernelRecord, operation: str) -> float | None:
    weight = 2 if operation.endswith("fma") else 1
    total = record.metrics.get(PER_THREAD.format(operation), math.nan)
    if math.isfinite(total):
        return weight * total
    rate, clock, duration = (value(record, need) for need in (f"{operation}_per_cycle", "sm_clock", "duration"))
    return None if rate is None or clock is None or duration is None else weight * rate * clock * duration


class Agreement(StrEnum):
    """How a work model and the counters compare. Within 10 % is AGREE."""

    AGREE = "agree"
    LESS = "fewer counted: matrix instructions that these counters miss, or another algorithm"
    FEWER = "fewer counted, matrix instructions included: another algorithm"
    MORE = "more counted: padding to tiles, work done twice, or a model that leaves steps out"
    NO_MODEL = "no work model"
    NOT_COUNTED = "no FLOP counter was collected"


@dataclass(frozen=True)
class Reconciled:
    """One call of an operator. kernels: how many of its kernels were counted. ratio: counted / model."""

    operator: str
    call: int
    kernels: int
    model: Quantity | None
    counted: Quantity | None
    agreement: Agreement

    @property
    def ratio(self) -> float | None:
        """Counted over model, None where one of them is missing."""
        return self.counted.value / self.model.value if self.model and self.counted else None


CLOSE = 0.1


def reconcile(found: CounterJoin, models: Mapping[int, float] | None = None) -> tuple[Reconciled, ...]:
    """Model FLOP against counted FLOP of each operator call that has counters, in the order of launches.

    models: FLOP by call, for operators whose trace has no shapes; it goes before the trace's own model. A call of
    which some kernels have no counters is left out: its sum would be too small by what is not known.
    """
    partial = {one.call for one, _ in found.only_trace}
    calls: dict[int, list[Pair]] = {}
    for pair in found.pairs:
        if pair.launched.call != NONE and pair.launched.call not in partial:
            calls.setdefault(pair.launched.call, []).append(pair)
    return tuple(_reconciled(call, pairs, models or {}) for call, pairs in calls.items())


def _reconciled(call: int, pairs: list[Pair], models: Mapping[int, float]) -> Reconciled:
    own = pairs[0].launched
    flop = models.get(call, own.flop)
    sums = [counted_flop(pair.record) for pair in pairs]
    known = [number for number, _ in sums if number is not None]
    counted = stamped(pairs[0].record, sum(known), "FLOP") if len(known) == len(sums) else None
    model = predicted(flop, "FLOP", "work model") if flop else None
    whole = all(tensor for _, tensor in sums)
    return Reconciled(own.operator, call, len(pairs), model, counted, _agreement(model, counted, whole))


def _agreement(model: Quantity | None, counted: Quantity | None, whole: bool) -> Agreement:
    if counted is None:
        return Agreement.NOT_COUNTED
    if model is None:
        return Agreement.NO_MODEL
    ratio = counted.value / model.value
    if abs(ratio - 1) <= CLOSE:
        return Agreement.AGREE
    if ratio > 1:
        return Agreement.MORE
    return Agreement.FEWER if whole else Agreement.LESS


def join_table(found: CounterJoin) -> Table:
    """A row a pair: operator, kernel, grid, counted FLOP, what limits it; then what has no partner, and why."""
    rows = [
        (pair.launched.operator or "–", *_kernel_cells(pair.record), str(diagnose(pair.record)))
        for pair in found.pairs
    ]
    rows += [
        (one.operator or "–", short_name(one.kernel), "", "", f"only in the trace: {why}")
        for one, why in found.only_trace
    ]
    rows += [("–", *_kernel_cells(one), f"only in the report: {why}") for one, why in found.only_report]
    return Table(("operator", "kernel", "grid", "counted FLOP", "limiter"), tuple(rows))


def _kernel_cells(record: KernelRecord) -> tuple[str, str, object]:
    counted, _ = counted_flop(record)
    grid = " × ".join(map(str, record.grid))
    return short_name(record.name) or "name lost", grid, "" if counted is None else stamped(record, counted, "FLOP")
