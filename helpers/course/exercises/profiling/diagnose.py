"""Twelve unseen kernels: how a learner's diagnosis of each is examined, and the words that it is given in."""

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial

from helpers.course.exercise import Exercise, Finding, Symptom
from helpers.course.exercises.deadline import TooLong, within
from helpers.course.exercises.profiling.unseen import unseen_kernels
from helpers.measure import Table
from helpers.profiling.counters.aliases import NEEDS, STALLS
from helpers.profiling.counters.record import KernelRecord
from helpers.profiling.diagnosis import Diagnosis, Level, State, diagnose
from helpers.profiling.diagnosis.evidence import (
    NEED_OF,
    active_share,
    level_of,
    stalls,
    stamped,
    tail_efficiency,
    uses_of,
    value,
)
from helpers.profiling.diagnosis.remedies import FOR_LEVEL, Advice
from helpers.profiling.diagnosis.verdict import STANDS_FOR

BAND = 0.10  # of the ceiling
CLOSE = 0.02  # evidence is read off a record, and may be rounded
DEADLINE_S = 2.0
FACTORS = (1e-9, 1e-6, 1e-3, 1e-2, 1e2, 1e3, 1e6, 1e9)
TAIL_EFFICIENCY, ACTIVE = "tail efficiency", "SM active / elapsed"


@dataclass(frozen=True)
class Reading:
    """What a learner says about one kernel.

    limiter: a `Level`; `Level.NONE` refuses. evidence: two numbers of the record at least, by the name of a need, of
    a metric, or of `tail efficiency` and `SM active / elapsed`; {} for a refusal. remedy: a key of `MENU`. gain: the
    largest speed-up that the remedy can bring, 1 for a refusal.
    """

    limiter: Level
    evidence: Mapping[str, float]
    remedy: str
    gain: float


@dataclass(frozen=True)
class Treatment:
    """One line of the menu: what to do, for which limiters, which levels it relieves, and the most work it saves."""

    what: str
    helps: tuple[Level, ...]
    relieves: tuple[Level, ...] = ()
    factor: float = math.inf


def _for(level: Level, place: int = 0, *also: Level) -> Treatment:
    advice: Advice = FOR_LEVEL[level][place]
    return Treatment(advice.what, (level, *also), advice.relieves, advice.factor)


MENU: dict[str, Treatment] = {
    "fuse": _for(Level.DRAM),
    "half the bytes": _for(Level.DRAM, 1),
    "shared tiles": _for(Level.L2),
    "coalesce": _for(Level.L1),
    "register tiles": _for(Level.LSU),
    "issue less": _for(Level.ISSUE),
    "tensor pipe": _for(Level.FMA, 0, Level.FP16),
    "simpler index arithmetic": _for(Level.ALU),
    "half the precision": _for(Level.TENSOR),
    "FP32": _for(Level.FP64),
    "polynomials": _for(Level.XU),
    "more blocks": Treatment("launch more blocks: smaller tiles, split-K, several problems", (Level.GRID,)),
    "whole waves": Treatment("make the grid a multiple of a wave, or the kernel persistent", (Level.TAIL,)),
    "wait less": Treatment("remove the longest wait: see what the warps wait for", (Level.LATENCY,)),
    "measure again": Treatment("collect again: longer, complete, under steady clocks", (Level.NONE,)),
}


def menu_table() -> Table:
    """The menu: key, what it is, which limiters it helps, and which busy levels it leaves alone."""
    units = (*NEED_OF, Level.L1)
    rows = []
    for key, one in MENU.items():
        left = ", ".join(level for level in units if level not in one.relieves) if one.relieves else "–"
        helps = ", ".join("too little is known" if level is Level.NONE else level for level in one.helps)
        factor = "" if math.isinf(one.factor) else f"{one.factor:g}"
        rows.append((key, one.what.partition(":")[0], helps, left, factor))
    return Table(("remedy", "what", "helps", "leaves alone", "factor at most"), tuple(rows))


def sheet(record: KernelRecord, levels: int = 5) -> Table:
    """What a learner reads a kernel from: time, waves, activity of the SMs, busiest levels, longest stalls."""
    first = [("duration", value(record, "duration"), "s"), ("waves", value(record, "waves"), "")]
    first += [(ACTIVE, active_share(record), "")]
    rows = [
        (name, "not collected" if number is None else _shown(record, number, unit)) for name, number, unit in first
    ]
    for need in ("sm_percent", "memory_percent", "dram_percent"):
        number = record.get(need)
        rows.append((need, "not collected" if number is None else _shown(record, number, "%")))
    rows += [
        (f"{use.level}, by {use.metric.partition('.')[0]}", _shown(record, use.percent, "%"))
        for use in uses_of(record)[:levels]
    ]
    rows += [
        (f"stall {reason}", f"{cycles:.3g} cycles, {100 * share:.0f} %")
        for reason, cycles, share in stalls(record)[:2]
    ]
    stamp = ", ".join(filter(None, (record.device, record.source.date, record.source.tool)))
    return Table((record.name, stamp), tuple(rows))


def _shown(record: KernelRecord, number: float, unit: str) -> str:
    return stamped(record, number, unit).text


def examine_diagnosis(answer: Callable[[KernelRecord], Reading], seed: int) -> Finding | None:
    """The first property that readings of twelve drawn kernels lack: form, limiter, evidence, remedy, gain."""
    cases = []
    for record in unseen_kernels(seed):
        handed = deepcopy(record)
        try:
            got = within(DEADLINE_S, partial(answer, handed))
        except TooLong:
            rule = "A reading takes a moment: a record is about a hundred numbers."
            return Finding(rule, f"{_where(record)}: nothing after {DEADLINE_S:g} s", Symptom.HANGS, 1)
        if not _same(handed, record):
            return Finding("A record is read only.", f"{_where(record)}: changed", Symptom.INPUT_CHANGED, 1)
        cases.append((record, got, diagnose(record)))
    return next((found for judge in JUDGES for case in cases if (found := judge(*case))), None)


def _same(one: KernelRecord, other: KernelRecord) -> bool:
    """Equal, where NaN equals NaN."""
    return list(map(repr, one.metrics.items())) == list(map(repr, other.metrics.items())) and (
        dict(one.breakdowns) == dict(other.breakdowns)
    )


def _where(record: KernelRecord) -> str:
    duration = value(record, "duration")
    return f"{record.name} on {record.device}, {'no duration' if duration is None else f'{1e6 * duration:.3g} µs'}"


def _form(record: KernelRecord, got: object, truth: Diagnosis) -> Finding | None:
    rule = "An answer is Reading(limiter, evidence, remedy, gain)."
    saw = ""
    if not isinstance(got, Reading):
        saw = f"got a {type(got).__name__}"
    elif not isinstance(got.limiter, Level):
        saw = f"limiter is a {type(got.limiter).__name__}, not a Level"
    elif not isinstance(got.evidence, Mapping) or not all(map(_is_number, got.evidence.values())):
        saw = "evidence is not a mapping from names to numbers"
    elif not isinstance(got.remedy, str) or not _is_number(got.gain):
        saw = f"remedy is a {type(got.remedy).__name__}, gain is a {type(got.gain).__name__}"
    if saw:
        return Finding(rule, f"{_where(record)}: {saw}", Symptom.TYPE, 1)
    if got.remedy not in MENU:
        return Finding("The remedy is a key of MENU.", f"{_where(record)}: {got.remedy!r}", Symptom.INTERFACE, 1)
    if got.limiter in STANDS_FOR or got.limiter is Level.HOST:
        rule = "The limiter is one unit, idle SMs, latency, or nothing that can be said."
        return Finding(rule, f"{_where(record)}: {got.limiter}", Symptom.INTERFACE, 1)
    return None


def _is_number(value: object) -> bool:
    from numbers import Real

    return isinstance(value, Real) and not isinstance(value, bool)


def _collected(record: KernelRecord, got: Reading, truth: Diagnosis) -> Finding | None:
    """Percentages that are NaN are not taken for small ones."""
    if got.limiter is Level.NONE or truth.state is not State.REFUSED or not record.failed:
        return None
    rule = "A collection that failed says nothing: such a record is refused."
    return Finding(rule, f"{_where(record)}: you said {got.limiter}", Symptom.NAN, 2)


def _believed(record: KernelRecord, got: Reading, truth: Diagnosis) -> Finding | None:
    """A record that says too little is refused: the learner's first question."""
    refused = got.limiter is Level.NONE
    if refused == (truth.state is State.REFUSED):
        return None
    if refused:
        rule = "A record that is whole, long enough and possible is diagnosed."
        return Finding(rule, f"{_where(record)}: refused", Symptom.VALUE, 2)
    rule = "What is impossible, too short or half missing limits nothing: such a record is refused."
    return Finding(rule, f"{_where(record)}: you said {got.limiter}", Symptom.VALUE, 2)


HINT_FOR = {State.IDLE_SMS: 3, State.LATENCY: 5}


def _limiter(record: KernelRecord, got: Reading, truth: Diagnosis) -> Finding | None:
    if got.limiter is truth.level:
        return None
    rule = "The questions have an order: do all SMs have work? Which unit is busiest? What do the warps wait for?"
    return Finding(rule, f"{_where(record)}: you said {got.limiter}", Symptom.VALUE, HINT_FOR.get(truth.state, 4))


def numbers_of(record: KernelRecord) -> dict[str, set[float]]:
    """The numbers that a record holds, by every name that it goes by."""
    found: dict[str, set[float]] = {}
    named = [(need, value(record, need)) for need in NEEDS] + list(record.metrics.items())
    named += [(use.metric, use.percent) for use in uses_of(record)]
    named += [(f"stall {reason}", cycles) for reason, cycles, _ in stalls(record)] + [(ACTIVE, active_share(record))]
    if (waves := value(record, "waves")) is not None:
        named.append((TAIL_EFFICIENCY, tail_efficiency(waves)))
    for name, number in named:
        if number is not None and math.isfinite(number):
            found.setdefault(name, set()).add(number)
    return found


def _kind(name: str) -> str:
    """What a piece of evidence is about: a level, the waves, the SMs' activity, a stall, or its own name."""
    by_need = {need: level for level, need in NEED_OF.items()} | {"l1_percent": Level.L1}
    if name in by_need:
        return by_need[name]
    for reason in STALLS:
        if name in (f"stall {reason}", f"stall_{reason}", *NEEDS[f"stall_{reason}"]):
            return f"stall {reason}"
    for kind, needs in (("waves", ("waves",)), (ACTIVE, ("sm_active_cycles", "sm_elapsed_cycles"))):
        if name in needs or any(name in NEEDS[need] for need in needs):
            return kind
    if "pct_of_peak" in name and "throughput" not in name and "warps_active" not in name:
        return level_of(name) or name
    return next((need for need, names in NEEDS.items() if name in names), name)


def _deciding(truth: Diagnosis) -> tuple[str, ...]:
    if truth.level is Level.GRID:
        return ("waves", ACTIVE)
    if truth.level is Level.TAIL:
        return ("waves", TAIL_EFFICIENCY, ACTIVE)
    return (f"stall {truth.stall}",) if truth.level is Level.LATENCY else (truth.level,)


def _evidence(record: KernelRecord, got: Reading, truth: Diagnosis) -> Finding | None:
    if truth.state is State.REFUSED:
        return None
    known = numbers_of(record)
    for name, number in got.evidence.items():
        if name not in known:
            saw = f"{_where(record)}: {name!r} is not in this record"
            return Finding("Evidence is read off the record.", saw, Symptom.INTERFACE, 6)
        if not any(math.isclose(number, true, rel_tol=CLOSE, abs_tol=1e-9) for true in known[name]):
            return _misread(record, name, number, known[name])
    kinds = {_kind(name) for name, number in got.evidence.items() if not _repeats(name, number, got.evidence)}
    if len(kinds) < 2:
        saw = f"{_where(record)}: {len(got.evidence)} numbers, about {len(kinds)} thing{'s' * (len(kinds) != 1)}"
        return Finding("Two pieces of evidence are about two different things.", saw, Symptom.SHAPE, 6)
    if not kinds & set(_deciding(truth)):
        saw = f"{_where(record)}: {', '.join(got.evidence)}"
        return Finding("One piece of evidence is a number of the limiter itself.", saw, Symptom.VALUE, 6)
    return None


def _repeats(name: str, number: float, evidence: Mapping[str, float]) -> bool:
    """Whether a total only repeats the part that is its maximum, and that is quoted too."""
    parts = [value for other, value in evidence.items() if not _is_total(other)]
    return _is_total(name) and any(math.isclose(number, part, rel_tol=1e-3) for part in parts)


def _is_total(name: str) -> bool:
    return name in ("sm_percent", "memory_percent") or "throughput" in name


def _misread(record: KernelRecord, name: str, number: float, true: set[float]) -> Finding:
    rule, saw = "Evidence is quoted as the record has it, in its units.", f"{_where(record)}: {name} = {number:.4g}"
    for factor in FACTORS:
        if any(math.isclose(number, factor * one, rel_tol=CLOSE) for one in true):
            return Finding(rule, f"{saw}, {factor:g} times what the record holds", Symptom.CONSTANT_FACTOR, 6)
    return Finding(rule, saw, Symptom.VALUE, 6)


def _remedy(record: KernelRecord, got: Reading, truth: Diagnosis) -> Finding | None:
    if truth.level in MENU[got.remedy].helps or _ceiling(got.remedy, truth) is not None:
        return None
    rule = "The remedy relieves what limits the kernel."
    return Finding(rule, f"{_where(record)}: {got.remedy!r} for {got.limiter}", Symptom.VALUE, 7)


def _ceiling(remedy: str, truth: Diagnosis) -> float | None:
    """The ceiling of a remedy of the menu: by its text, or the only one where there are no units to relieve."""
    if truth.state is State.REFUSED:
        return 1.0
    if truth.state in (State.IDLE_SMS, State.LATENCY):
        return truth.remedies[0].ceiling.value
    what = MENU[remedy].what
    return next((one.ceiling.value for one in truth.remedies if one.what == what), None)


def _gain(record: KernelRecord, got: Reading, truth: Diagnosis) -> Finding | None:
    rule, saw = "A gain is a finite factor, 1 or more.", f"{_where(record)}: {got.gain:.3g} times by {got.remedy!r}"
    if not math.isfinite(got.gain):
        return Finding(rule, saw, Symptom.NAN, 8)
    ceiling = _ceiling(got.remedy, truth)
    if got.gain > ceiling * (1 + BAND):
        rule = "No remedy brings more than the next limit allows."
        return Finding(rule, saw, Symptom.ABOVE_ROOF, 8)
    if got.gain < ceiling * (1 - BAND):
        rule = "The gain is the largest that the remedy can bring: up to the next limit."
        return Finding(rule, saw, Symptom.VALUE, 8)
    return None


JUDGES = (_form, _collected, _believed, _limiter, _evidence, _remedy, _gain)


EXERCISES = (
    Exercise(
        id="profiling.6",
        title="Diagnose twelve unseen kernels",
        hints=(
            "Return Reading(limiter, evidence, remedy, gain): a Level, a dict of names and numbers, a key of "
            "MENU, a factor. record.get(need) is None for what was not collected and NaN for what failed.",
            "Refuse first. Is a percentage of the SM, memory, DRAM, L1 or L2 not a number? Is the memory side or "
            "the SM side missing? Is any percentage above 105? Did the kernel end before 3 µs?",
            "Idle SMs come before busy units, unless a unit is at 80 % over the whole time all the same. Compare "
            "waves with 1, and above 1 waves / ⌈waves⌉ with 0.75; SM active / elapsed with 0.75.",
            "uses_of(record) sorts the units: the first one limits, if it is at 60 % or more. The totals, SM % "
            "and memory %, name no unit.",
            "Below 60 % everything waits: the limiter is Level.LATENCY, whatever unit leads. stalls(record) says "
            "for what, longest first.",
            "Quote the number that decided, by its name, and one that rules out the runner-up. Use.metric is the "
            "name of a unit's number; for idle SMs it is waves, for latency the longest stall.",
            "The menu says which limiter each remedy helps.",
            "Busy unit: 100 / percent of the busiest level that the remedy leaves alone, and not above its "
            "factor. Idle SMs: 1 / the share that had work, the smaller of waves (or tail efficiency) and SM "
            "active / elapsed. Wait: 1 / (1 - its share). For the last two, the busiest unit cannot pass 100 %. "
            "No kernel ends below 3 µs.",
        ),
        examine=examine_diagnosis,
    ),
)
