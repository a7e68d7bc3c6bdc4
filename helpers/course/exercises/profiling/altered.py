"""Recorded kernels, altered so that they still could exist: for exercises whose answers nobody can look up.

A total stays the largest of its parts, and time, cycles, bytes and rates change together. The tool in the stamp of an
altered record says that it was altered.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from helpers.profiling.counters.aliases import spellings
from helpers.profiling.counters.record import KernelRecord
from helpers.profiling.diagnosis.evidence import ELAPSED, NEED_OF, active_share, level_of, tail_efficiency, value
from helpers.profiling.diagnosis.verdict import Level

ALTERED = "altered for the exercise"
PARTS_OF = {"dram_percent": Level.DRAM, "l2_percent": Level.L2}
ATTACHED = {  # counters that follow the percentage of a level
    Level.DRAM: ("dram_bytes", "dram_read_bytes", "dram_write_bytes", "dram_bytes_per_second"),
    Level.L2: ("l2_sectors", "l2_bytes"),
    Level.FMA: ("fadd_per_cycle", "fmul_per_cycle", "ffma_per_cycle", "ffma_flop_per_cycle"),
}
AMOUNTS = (  # what grows with the work: bytes, sectors, requests, instructions
    *("dram_bytes", "dram_read_bytes", "dram_write_bytes", "l2_bytes", "l2_sectors", "l1_bytes", "l2_to_l1_bytes"),
    *("l1_to_l2_bytes", "global_load_sectors", "global_load_requests", "global_store_sectors"),
    *("global_store_requests", "shared_bank_conflicts", "instructions"),
)
TIMES = ("duration", "sm_active_cycles", "sm_elapsed_cycles")
PACE = (  # what falls when the same work takes longer
    *("dram_bytes_per_second", "issue_active", "warps_eligible", "fadd_per_cycle", "fmul_per_cycle"),
    *("ffma_per_cycle", "ffma_flop_per_cycle", "dadd_per_cycle", "dmul_per_cycle", "dfma_per_cycle"),
    "dfma_flop_per_cycle",
)
L1_ACTIVE = "l1tex__throughput.avg.pct_of_peak_sustained_active"
FREE_SLOTS = tuple(f"occupancy_limit_{what}" for what in ("registers", "shared", "warps", "blocks"))


def stamped_altered(record: KernelRecord, **fields: object) -> KernelRecord:
    """The record with other fields, and a stamp that says so."""
    tool = record.source.tool
    source = record.source if ALTERED in tool else replace(record.source, tool=f"{tool}, {ALTERED}".strip(", "))
    return replace(record, source=source, **fields)


def scaled(record: KernelRecord, needs: Iterable[str], factor: float) -> dict[str, float]:
    """The record's metrics with those of the needs multiplied, in whatever spelling they are there."""
    names = {name for need in needs for name in spellings(need)}
    return {name: number * factor if name in names else number for name, number in record.metrics.items()}


def with_levels(record: KernelRecord, percents: Mapping[Level, float]) -> KernelRecord:
    """The record with each named level at a percentage of its peak, 0 to 100, and everything that follows from it.

    All counters of a level are scaled together; one that reads 0 is set, and listed among the parts of its total. The
    totals (SM, memory, DRAM, L2, L1) become the largest of their parts. Other levels stay as they are.
    """
    metrics, breakdowns = dict(record.metrics), dict(record.breakdowns)
    for level, percent in percents.items():
        names = [name for name in metrics if name.endswith(ELAPSED) and _is_part(name) and level_of(name) is level]
        now = max((metrics[name] for name in names), default=0.0)
        if now > 0:
            follow = {name for need in ATTACHED.get(level, ()) for name in spellings(need)}
            for name in (*names, *(follow & metrics.keys())):
                metrics[name] *= percent / now
        else:
            name = spellings(NEED_OF[level])[0]
            metrics[name] = percent
            breakdowns = _listed(breakdowns, name, level)
    return stamped_altered(record, metrics=metrics | _totals(record, metrics, breakdowns), breakdowns=breakdowns)


def _is_part(name: str) -> bool:
    """Whether a percentage counts one unit, not the largest of several."""
    return "throughput" not in name


def _listed(breakdowns: dict, name: str, level: Level) -> dict:
    need = "memory_percent" if level in (Level.DRAM, Level.L2, Level.L1) else "sm_percent"
    total = spellings(need)[0]
    return breakdowns | {total: tuple(dict.fromkeys((*breakdowns.get(total, ()), name)))}


def _totals(record: KernelRecord, metrics: Mapping[str, float], breakdowns: Mapping) -> dict[str, float]:
    """Each throughput of the record as the largest of its parts."""
    found = {
        total: max(metrics[name] for name in names if name in metrics)
        for total, names in breakdowns.items()
        if total in metrics and any(name in metrics for name in names)
    }
    memory = breakdowns.get(spellings("memory_percent")[0], ())
    for need, level in PARTS_OF.items():
        parts = [metrics[name] for name in memory if name in metrics and level_of(name) is level]
        found |= {name: max(parts) for name in spellings(need) if name in metrics and parts}
    near = [metrics[name] for name in memory if name in metrics and name.startswith("l1tex__")]
    if near and L1_ACTIVE in metrics:
        found[L1_ACTIVE] = min(100.0, max(near) / min(1.0, active_share(record) or 1.0))
    return found


def longer(record: KernelRecord, factor: float) -> KernelRecord:
    """Each thread does `factor` times the work: time, cycles and amounts grow, rates and percentages stay."""
    return stamped_altered(record, metrics=scaled(record, (*TIMES, *AMOUNTS), factor))


def waiting(record: KernelRecord, factor: float, reason: str) -> KernelRecord:
    """The same work takes `factor` times as long, because warps wait for `reason`: all percentages fall.

    reason: a stall, as `barrier`. The cycles between two instructions of a warp grow by the factor, and the whole
    growth is that stall's.
    """
    before = value(record, "warp_latency") or 0.0
    metrics = scaled(record, TIMES, factor)
    slow = {name for need in PACE for name in spellings(need)}
    for name in metrics:
        if name in slow or name.endswith(ELAPSED) or name == L1_ACTIVE:
            metrics[name] /= factor
    for name in spellings("warp_latency"):
        metrics[name] = before * factor
    for name in spellings(f"stall_{reason}"):
        metrics[name] = metrics.get(name, 0.0) + before * (factor - 1)
    return stamped_altered(record, metrics=metrics)


def on_blocks(record: KernelRecord, blocks: int) -> KernelRecord:
    """The same kernel launched with another number of blocks: other waves, and SMs that idle at the end.

    An SM that holds fewer blocks than it could is taken to do proportionally less.
    """
    slots = _slots(record)
    before, after = record.require("waves"), blocks / slots
    full = tail_efficiency(after) if after > 1 else after
    share = full / (tail_efficiency(before) if before > 1 else before)
    time = math.ceil(after) / math.ceil(before)
    metrics = scaled(record, AMOUNTS, after / before)
    for name in metrics:
        if name.endswith(ELAPSED):
            metrics[name] = min(100.0, metrics[name] * share)
    metrics |= {name: metrics[name] * time for need in TIMES for name in spellings(need) if name in metrics}
    metrics |= {name: metrics[name] * share for need in PACE[:1] for name in spellings(need) if name in metrics}
    metrics |= {name: after for name in spellings("waves")} | {name: float(blocks) for name in spellings("blocks")}
    active = min(1.0, after * slots / (value(record, "sm_count") or slots)) if after < 1 else full
    elapsed = value(record, "sm_elapsed_cycles")
    if elapsed is not None:
        metrics |= {name: elapsed * time * active for name in spellings("sm_active_cycles") if name in metrics}
    return stamped_altered(record, metrics=metrics, grid=(blocks, 1, 1))


def _slots(record: KernelRecord) -> int:
    """Blocks that the device holds at once."""
    limit = min(value(record, need) for need in FREE_SLOTS if value(record, need) is not None)
    return round(limit * record.require("sm_count"))


def failed(record: KernelRecord, needs: Iterable[str]) -> KernelRecord:
    """The collection of some needs failed: they are there, as NaN."""
    names = {name for need in needs for name in spellings(need)}
    metrics = {name: math.nan if name in names else number for name, number in record.metrics.items()}
    return stamped_altered(record, metrics=metrics)


def without(record: KernelRecord, needs: Iterable[str]) -> KernelRecord:
    """Some needs were not asked for: they are absent, and so are the parts of a total among them."""
    names = {name for need in needs for name in spellings(need)}
    metrics = {name: number for name, number in record.metrics.items() if name not in names}
    breakdowns = {name: parts for name, parts in record.breakdowns.items() if name not in names}
    return stamped_altered(record, metrics=metrics, breakdowns=breakdowns)


def nameless(record: KernelRecord, name: str) -> KernelRecord:
    """The record under another name, without what the tool and the course wrote about it."""
    return replace(record, name=name, what="", rules=(), source=replace(record.source, file=name, origin=""))
