"""Twelve kernels that nobody has seen: recorded ones, most of them altered, drawn from a seed."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from helpers.course.exercises.profiling.altered import (
    failed,
    longer,
    nameless,
    on_blocks,
    waiting,
    with_levels,
    without,
)
from helpers.profiling.counters.record import KernelRecord
from helpers.profiling.diagnosis import Level, State, diagnose
from helpers.profiling.diagnosis.evidence import uses_of
from helpers.profiling.recordings import recorded_kernels

DETAILED = (  # full sets, with stalls
    *("a40_stream_store", "a40_int4_tensor_mix", "rtx3070_scan_barrier", "rtx3090_gemm_coalesced"),
    "rtx3090_gemm_uncoalesced",
)
LADDER = ("a10g_sgemm_naive", "a10g_sgemm_coalesced", "a10g_sgemm_shared", "a10g_sgemm_1d_tiles")
TRIES = 40


@dataclass(frozen=True)
class Unseen:
    """One kernel of the pool: its record, and what was drawn, which only tests look at."""

    record: KernelRecord
    drawn: tuple[Level, State, str]


Maker = Callable[[random.Random, dict[str, KernelRecord]], tuple[KernelRecord, Level, State, str]]


def unseen_kernels(seed: int) -> tuple[KernelRecord, ...]:
    """Twelve kernels in random order: every kind of limiter is among them, and some that say too little.

    They are called `kernel 1` to `kernel 12`; their stamps name the device, and say `altered` where numbers were.
    """
    return tuple(case.record for case in draw(seed))


def draw(seed: int) -> tuple[Unseen, ...]:
    """The twelve kernels with what was drawn for each."""
    chance, shipped = random.Random(seed), recorded_kernels()
    cases = [_clear(chance, shipped, maker) for maker in MAKERS]
    chance.shuffle(cases)
    return tuple(
        Unseen(nameless(case.record, f"kernel {number}"), case.drawn) for number, case in enumerate(cases, start=1)
    )


def _clear(chance: random.Random, shipped: dict[str, KernelRecord], maker: Maker) -> Unseen:
    """The first kernel of a maker of which the classifier says what was drawn, without doubt about a threshold."""
    for _ in range(TRIES):
        record, level, state, word = maker(chance, shipped)
        found = diagnose(record)
        near = any("near the threshold" in doubt.text or "as busy as" in doubt.text for doubt in found.doubts)
        if (found.level, found.state) == (level, state) and word in (found.stall, found.refusal, "") and not near:
            return Unseen(record, (level, state, word))
        if state is State.REFUSED and found.state is state:
            return Unseen(record, (level, state, word))
    raise AssertionError(f"{maker.__name__} drew no clear kernel")


def _time(chance: random.Random, record: KernelRecord) -> KernelRecord:
    """The record with another duration, 20 µs at least, or as it was recorded."""
    if chance.random() < 0.25:
        return record
    return longer(record, max(chance.uniform(0.4, 4.0), 20e-6 / record.require("duration")))


def _busy(chance: random.Random, record: KernelRecord, level: Level, others: tuple[Level, ...] = ()):
    """The record with `level` saturated or leaning, and all others well below."""
    saturated = chance.random() < 0.6
    top = chance.uniform(84, 97) if saturated else chance.uniform(64, 76)
    percents = {level: top}
    for use in uses_of(record):
        if use.level is not level and (use.level in others or use.percent > top - 14):
            percents[use.level] = chance.uniform(8, top - 16)
    made = with_levels(_time(chance, record), percents)
    return made, level, State.SATURATED if saturated else State.LEANING, ""


def _dram(chance, shipped):
    return _busy(chance, shipped[chance.choice(("a40_stream_store", "rtx3070_scan_barrier"))], Level.DRAM)


def _l1(chance, shipped):
    name = chance.choice(("a10g_sgemm_naive", "rtx3090_gemm_uncoalesced"))
    return _busy(chance, shipped[name], Level.L1, (Level.LSU, Level.FMA))


def _lsu(chance, shipped):
    return _busy(chance, shipped[chance.choice((*LADDER[1:], "rtx3090_gemm_coalesced"))], Level.LSU, (Level.FMA,))


def _l2(chance, shipped):
    return _busy(chance, shipped[chance.choice(("a40_stream_store", "rtx3070_scan_barrier"))], Level.L2)


def _sm_unit(*levels: Level) -> Maker:
    def sm_unit(chance, shipped):
        return _busy(chance, shipped[chance.choice((*DETAILED, *LADDER))], chance.choice(levels))

    return sm_unit


def _latency(*reasons: str) -> Maker:
    """A kernel whose units were busy, until its warps began to wait."""

    def latency(chance, shipped):
        reason = chance.choice(reasons)
        record = _time(chance, shipped[chance.choice(DETAILED)])
        return waiting(record, chance.uniform(2.2, 4.0), reason), Level.LATENCY, State.LATENCY, reason

    return latency


def _small_grid(chance, shipped):
    if chance.random() < 0.2:
        name = chance.choice(("a100_cutlass_gemm", "a100_cutlass_fused", "a100_reduce", "a10g_sgemm_2d_tiles"))
        return shipped[name], Level.GRID, State.IDLE_SMS, ""
    record = longer(shipped[chance.choice((*DETAILED[2:], *LADDER))], chance.uniform(2, 6))
    return on_blocks(record, chance.randint(12, 60)), Level.GRID, State.IDLE_SMS, ""


def _tail(chance, shipped):
    if chance.random() < 0.2:
        name = chance.choice(("a100_random_normal", "a100_square_triton"))
        return shipped[name], Level.TAIL, State.IDLE_SMS, ""
    record = longer(shipped[chance.choice((*DETAILED[2:], *LADDER))], chance.uniform(4, 9))
    slots = round(record.require("blocks") / record.require("waves"))
    blocks = slots * chance.choice((1, 2)) + chance.randint(2, max(3, slots // 4))
    return on_blocks(record, blocks), Level.TAIL, State.IDLE_SMS, ""


def _nan(chance, shipped):
    if chance.random() < 0.2:
        return shipped["a10g_sgemm_failed"], Level.NONE, State.REFUSED, ""
    needs = ["duration", "sm_percent", "memory_percent", "dram_percent", "l1_percent", "l2_percent"]
    lost = chance.sample(needs[1:], chance.randint(1, 3))
    return failed(shipped[chance.choice((*DETAILED, *LADDER))], lost), Level.NONE, State.REFUSED, ""


def _unusable(chance, shipped):
    """Too short, impossible, or without a side that the other does not outweigh."""
    kind = chance.choice(("short", "impossible", "missing"))
    record = shipped[chance.choice((*DETAILED, "a10g_sgemm_naive", "a10g_sgemm_coalesced"))]
    if kind == "short":
        record = longer(record, chance.uniform(1.0e-6, 2.7e-6) / record.require("duration"))
    elif kind == "impossible":
        record = with_levels(record, {chance.choice((Level.L1, Level.LSU, Level.DRAM)): chance.uniform(112, 160)})
    else:
        quiet = with_levels(record, {use.level: use.percent * 0.7 for use in uses_of(record) if use.percent > 70})
        record = without(quiet, ("memory_percent",))
    return record, Level.NONE, State.REFUSED, ""


MAKERS: tuple[Maker, ...] = (
    *(_dram, _l1, _lsu, _l2, _small_grid, _tail, _nan, _unusable),
    _sm_unit(Level.ISSUE, Level.ALU),
    _sm_unit(Level.FMA, Level.TENSOR),
    _latency("long_scoreboard", "short_scoreboard"),
    _latency("barrier", "membar", "no_instruction"),
)
