"""Kernels that break the rule of thumb: how a learner's counter-examples are examined."""

import math
import random
from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import partial
from itertools import product

from helpers.course.exercise import Exercise, Finding, Symptom
from helpers.course.exercises.deadline import TooLong, within
from helpers.course.exercises.profiling.altered import PARTS_OF, longer, nameless, with_levels
from helpers.measure import Table
from helpers.profiling.counters.aliases import NEEDS
from helpers.profiling.counters.record import KernelRecord
from helpers.profiling.diagnosis import Level, RuleOfThumb, State, diagnose, rule_of_thumb
from helpers.profiling.diagnosis.evidence import ELAPSED, level_of, value
from helpers.profiling.recordings import recorded_kernels

LIMITERS = (Level.DRAM, Level.L2, Level.L1, Level.LSU, Level.ISSUE, Level.FMA, Level.ALU, Level.TENSOR)
MEANT = {RuleOfThumb.MEMORY: (Level.DRAM,), RuleOfThumb.COMPUTE: (Level.FMA, Level.TENSOR)}
BASES = ("rtx3090_gemm_coalesced", "rtx3090_gemm_uncoalesced", "a40_stream_store", "a10g_sgemm_shared")
TOTALS = ("sm_percent", "memory_percent")
SLACK = 0.5  # points between a total and its largest part
DEADLINE_S = 2.0

CounterExample = Callable[[KernelRecord, RuleOfThumb, Level], KernelRecord | None]


def can_exist(said: RuleOfThumb, limiter: Level) -> bool:
    """Whether some kernel that `limiter` limits makes the rule say `said`.

    The rule says memory-bound with SM below 25 %, so no unit of the SM is busy: DRAM, L2 or L1 limits. It says
    compute-bound with DRAM below 50 % and something above 75 %: DRAM cannot be the busiest.
    """
    if said is RuleOfThumb.MEMORY:
        return limiter in (Level.DRAM, Level.L2, Level.L1)
    return not (said is RuleOfThumb.COMPUTE and limiter is Level.DRAM)


def misleads(record: KernelRecord) -> str:
    """How the rule fails a record: `wrong` unit, `silent` though a unit is busy, or '' where it does not.

    memory-bound means DRAM to the rule, compute-bound the pipes that do FLOP: its remedies help no other unit.
    """
    said, found = rule_of_thumb(record), diagnose(record)
    if said in MEANT:
        return "" if found.level in MEANT[said] else "wrong"
    return "silent" if found.state in (State.SATURATED, State.LEANING, State.BALANCED) else ""


def misleading_table(records: Iterable[KernelRecord], names: Iterable[str]) -> Table:
    """Name, SM %, DRAM %, what the rule says, what limits, and how the rule fails, one row a record."""
    rows = []
    for name, record in zip(names, records):
        sides = tuple(record.quantity(need) for need in ("sm_percent", "dram_percent"))
        rows.append((name, *sides, str(rule_of_thumb(record)), str(diagnose(record)), misleads(record) or "–"))
    return Table(("kernel", "SM", "DRAM", "rule of thumb", "classifier", "the rule is"), tuple(rows))


def impossible(record: KernelRecord) -> str:
    """Why a record cannot come from a kernel that ran, in one line; '' when it could.

    A percentage lies between 0 and 100. A total (SM, memory, DRAM) is the largest of its parts, and L2 not below it.
    Two counters of the load/store unit's input count the same instructions.
    """
    for name, number in record.metrics.items():
        if name.endswith(ELAPSED) and not 0 <= number <= 100 + SLACK:
            return f"{name} is {number:.4g} %"
    for need in TOTALS:
        parts, total = record.breakdown(need), value(record, need)
        if total is not None and parts and abs(parts[0][1] - total) > SLACK:
            return f"{need} is {total:.4g} %, and its largest part {parts[0][0]} {parts[0][1]:.4g} %"
    for need, level in PARTS_OF.items():
        parts = [number for name, number in record.breakdown("memory_percent") if level_of(name) is level]
        total = value(record, need)
        hidden = 0.0 if level is Level.DRAM else 100.0  # L2 has parts that the tool does not list
        if total is not None and parts and not -SLACK <= total - max(parts) <= SLACK + hidden:
            return f"{need} is {total:.4g} %, and its largest part {max(parts):.4g} %"
    requests, executed = (
        record.metrics.get(stem + ELAPSED) for stem in ("l1tex__lsuin_requests", "sm__inst_executed_pipe_lsu")
    )
    if requests is not None and executed is not None and abs(requests - executed) > max(SLACK, 0.25 * requests):
        return f"the LSU is at {executed:.4g} % by its instructions, and at {requests:.4g} % by its requests"
    return ""


def _bases(seed: int) -> tuple[KernelRecord, ...]:
    """Two records from the seed: one as it was recorded, one whose units are busy otherwise."""
    chance, shipped = random.Random(seed), recorded_kernels()
    first, second = chance.sample(BASES, 2)
    levels = {level: chance.uniform(4, 70) for level in LIMITERS}
    other = longer(with_levels(shipped[second], levels), chance.uniform(1.0, 3.0))
    return nameless(shipped[first], "kernel 1"), nameless(other, "kernel 2")


def examine_counterexample(answer: CounterExample, seed: int) -> Finding | None:
    """The first verdict and limiter for which `answer` gives no kernel where one can exist, or a wrong one."""
    cases = []
    for record, said, limiter in product(_bases(seed), RuleOfThumb, LIMITERS):
        handed = deepcopy(record)
        try:
            got = within(DEADLINE_S, partial(answer, handed, said, limiter))
        except TooLong:
            saw = f"{_where(record, said, limiter)}: nothing after {DEADLINE_S:g} s"
            return Finding("A few percentages are chosen, not searched for without end.", saw, Symptom.HANGS, 3)
        if handed != record:
            saw = f"{_where(record, said, limiter)}: its metrics changed"
            return Finding("The record that was handed in is read only.", saw, Symptom.INPUT_CHANGED, 1)
        cases.append((record, said, limiter, got))
    return next((found for judge in JUDGES for case in cases if (found := judge(*case))), None)


def _where(record: KernelRecord, said: RuleOfThumb, limiter: Level) -> str:
    return f"{record.name} on {record.device}, wanted {said} though {limiter} limits"


def _form(record: KernelRecord, said: RuleOfThumb, limiter: Level, got: object) -> Finding | None:
    if got is None or isinstance(got, KernelRecord):
        return None
    saw = f"{_where(record, said, limiter)}: got a {type(got).__name__}"
    return Finding("The answer is a KernelRecord, or None.", saw, Symptom.TYPE, 1)


def _finite(record: KernelRecord, said: RuleOfThumb, limiter: Level, got: KernelRecord | None) -> Finding | None:
    if got is None or all(map(math.isfinite, got.metrics.values())):
        return None
    saw = f"{_where(record, said, limiter)}: {got.failed[:1] or 'a metric'} is not finite"
    return Finding("Every percentage is a number.", saw, Symptom.NAN, 1)


def _possible(record: KernelRecord, said: RuleOfThumb, limiter: Level, got: KernelRecord | None) -> Finding | None:
    why = "" if got is None else impossible(got)
    if not why:
        return None
    above = any(name.endswith(ELAPSED) and number > 100 + SLACK for name, number in got.metrics.items())
    symptom = Symptom.ABOVE_ROOF if above else Symptom.VALUE
    rule = "A counter-example could have been measured: totals are maxima, and nothing is above 100 %."
    return Finding(rule, f"{_where(record, said, limiter)}: {why}", symptom, 2)


def _alike(record: KernelRecord, said: RuleOfThumb, limiter: Level, got: KernelRecord | None) -> Finding | None:
    """The answer is made from the record that was handed in."""
    if got is None:
        return None
    for what, mine, theirs in (("name", record.name, got.name), ("device", record.device, got.device)):
        if mine != theirs:
            rule = "The counter-example is the handed record with other percentages."
            saw = f"{_where(record, said, limiter)}: the {what} is {theirs[:40]!r}"
            return Finding(rule, saw, Symptom.INTERFACE, 1)
    lost = next((need for need in NEEDS if value(record, need) is not None and value(got, need) is None), None)
    if lost is None:
        return None
    rule = "The counter-example has every counter that the handed record has."
    return Finding(rule, f"{_where(record, said, limiter)}: {lost} is gone", Symptom.INTERFACE, 1)


def _exists(record: KernelRecord, said: RuleOfThumb, limiter: Level, got: KernelRecord | None) -> Finding | None:
    if got is not None or not can_exist(said, limiter):
        return None
    rule = "Where such a kernel can exist, there is one."
    return Finding(rule, f"{_where(record, said, limiter)}: got None", Symptom.VALUE, 4)


def _said(record: KernelRecord, said: RuleOfThumb, limiter: Level, got: KernelRecord | None) -> Finding | None:
    if got is None or rule_of_thumb(got) is said:
        return None
    numbers = ", ".join(f"{need} {value(got, need):.3g}" for need in ("sm_percent", "dram_percent"))
    saw = f"{_where(record, said, limiter)}: the rule says {rule_of_thumb(got)} ({numbers})"
    return Finding("The rule of thumb says what was wanted.", saw, Symptom.VALUE, 3)


def _limits(record: KernelRecord, said: RuleOfThumb, limiter: Level, got: KernelRecord | None) -> Finding | None:
    if got is None:
        return None
    found = diagnose(got)
    if found.level is limiter:
        return None
    saw = f"{_where(record, said, limiter)}: the classifier says {found}"
    return Finding("The wanted unit is the busiest, and busy enough to limit.", saw, Symptom.VALUE, 5)


JUDGES = (_form, _finite, _possible, _alike, _exists, _said, _limits)


EXERCISES = (
    Exercise(
        id="profiling.7",
        title="Counter-examples to the rule of thumb",
        hints=(
            "with_levels(record, {Level.LSU: 90, …}) returns a new record with these units at these percentages, "
            "and all totals follow. Hand it a dict, return what it gives, or None.",
            "SM % is the largest of the SM's units: issue slots, LSU and the pipes. Memory % is the largest of "
            "DRAM, L2, L1 and LSU. Setting a total without its parts makes a record that nothing could have "
            "measured.",
            "The rule reads two numbers. Write down, for each thing that it can say, where SM % and DRAM % must lie.",
            "The limiter is the busiest unit at 60 % or more. Which of the rule's two numbers must it raise, and "
            "which may stay low? For a verdict that it does not bring about by itself, add a second, less busy "
            "unit.",
            "Set every unit that is not needed low, so that none of the old numbers is in the way. A gap of more "
            "than 10 points keeps the runner-up out.",
            "Three kinds of pairs are left: those that no kernel can be. If SM % is below 25, can a unit of the "
            "SM limit? If DRAM is below 50 %, can DRAM be the busiest of all?",
        ),
        examine=examine_counterexample,
    ),
)
