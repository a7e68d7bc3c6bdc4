"""The SOLBottleneck rule of Nsight Compute, recomputed, and what the rule itself wrote into a report."""

import math
from dataclasses import dataclass
from enum import StrEnum

from helpers.profiling.counters.record import KernelRecord

NO_BOUND, LATENCY, BALANCED, FULL_WAVE = 80.0, 60.0, 10.0, 1.0
UNITS = {"dram": "DRAM", "fbpa": "DRAM", "lts": "L2", "l1tex": "L1"}
SAME = 0.011  # percentages of the tool's pages have two decimals


class Bottleneck(StrEnum):
    """The outcomes of the rule. SATURATED ones are titled "High Throughput" in the tool, whichever side it is."""

    COMPUTE_SATURATED = "compute, saturated"
    MEMORY_SATURATED = "memory, saturated"
    COMPUTE = "compute"
    MEMORY = "memory"
    BALANCED = "balanced"
    LATENCY = "latency"
    SMALL_GRID = "small grid"


@dataclass(frozen=True)
class NvidiaVerdict:
    """The rule's outcome. unit: DRAM, L2 or L1 where memory is blamed and its breakdown is known, else ''."""

    bottleneck: Bottleneck
    unit: str = ""

    def __str__(self) -> str:
        side, _, state = self.bottleneck.partition(", ")
        return ", ".join(filter(None, (f"{side} ({self.unit})" if self.unit else side, state)))


def nvidia_rule(record: KernelRecord) -> NvidiaVerdict | None:
    """What the rule says about a record; None where a percentage or the waves that it needs are not there.

    Ties go to compute, as in the tool. Source: the rule's text in Nsight Compute's sections folder.
    """
    sm, memory, waves = (_finite(record, need) for need in ("sm_percent", "memory_percent", "waves"))
    if sm is None or memory is None:
        return None
    if max(sm, memory) >= NO_BOUND:
        if memory > sm:
            return NvidiaVerdict(Bottleneck.MEMORY_SATURATED, _unit(record, memory))
        return NvidiaVerdict(Bottleneck.COMPUTE_SATURATED)
    if max(sm, memory) < LATENCY:
        if waves is None:
            return None
        return NvidiaVerdict(Bottleneck.SMALL_GRID if waves < FULL_WAVE else Bottleneck.LATENCY)
    if abs(sm - memory) < BALANCED:
        return NvidiaVerdict(Bottleneck.BALANCED)
    if sm > memory:
        return NvidiaVerdict(Bottleneck.COMPUTE)
    return NvidiaVerdict(Bottleneck.MEMORY, _unit(record, memory))


def _finite(record: KernelRecord, need: str) -> float | None:
    value = record.get(need)
    return value if value is not None and math.isfinite(value) else None


def _unit(record: KernelRecord, memory: float) -> str:
    """The unit of the largest part of the memory percentage, or of the level whose percentage equals it."""
    for metric, _ in record.breakdown("memory_percent")[:1]:
        return UNITS.get(metric.partition("__")[0], "")
    for need, unit in (("dram_percent", "DRAM"), ("l2_percent", "L2"), ("l1_percent", "L1")):
        value = _finite(record, need)
        if value is not None and abs(value - memory) < SAME:
            return unit
    return ""


PHRASES = (
    ("exhibits low compute throughput", Bottleneck.LATENCY),
    ("grid is too small to fill the available resources", Bottleneck.SMALL_GRID),
    ("Compute is more heavily utilized than Memory", Bottleneck.COMPUTE),
    ("Memory is more heavily utilized than Compute", Bottleneck.MEMORY),
    ("Compute and Memory are well-balanced", Bottleneck.BALANCED),
)


def nvidia_said(record: KernelRecord) -> NvidiaVerdict | None:
    """What the rule of the tool wrote into the report, recognised by its message; None where it wrote nothing."""
    for _, message in record.rules:
        text = " ".join(message.split())
        for phrase, bottleneck in PHRASES:
            if phrase in text:
                return NvidiaVerdict(bottleneck, _named_unit(text) if bottleneck is Bottleneck.MEMORY else "")
        if "is utilizing greater than 80.0% of the available" in text:
            unit = _named_unit(text)
            return NvidiaVerdict(Bottleneck.MEMORY_SATURATED if unit else Bottleneck.COMPUTE_SATURATED, unit)
    return None


def _named_unit(text: str) -> str:
    """The unit in `Start by analyzing L1 in the …` or `to identify the DRAM bottleneck`."""
    for before, after in (("by analyzing ", " in the"), ("to identify the ", " bottleneck")):
        word = text.partition(before)[2].partition(after)[0].strip()
        if word in ("DRAM", "L1", "L2"):
            return word
    return ""
