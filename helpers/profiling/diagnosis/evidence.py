"""What a record says about each level: how busy it is, which SMs are idle, what warps wait for, how much moved."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from helpers.measure import Quantity, recorded
from helpers.profiling.counters.aliases import STALLS
from helpers.profiling.counters.record import KernelRecord
from helpers.profiling.diagnosis.thresholds import UNEXPLAINED
from helpers.profiling.diagnosis.verdict import MEMORY_LEVELS, SM_LEVELS, Level

ELAPSED = ".avg.pct_of_peak_sustained_elapsed"
BY_PREFIX = (
    ("dram__", Level.DRAM),
    ("fbpa__", Level.DRAM),
    ("lts__", Level.L2),
    ("l1tex__lsuin", Level.LSU),
    ("l1tex__", Level.L1),
    ("sm__inst_executed_pipe_lsu", Level.LSU),
    ("sm__mio", Level.ISSUE),
    ("sm__inst_executed_pipe_tex", Level.L1),
    ("sm__inst_executed_pipe_xu", Level.XU),
    ("sm__inst_executed_pipe_fp16", Level.FP16),
    ("sm__pipe_fp16", Level.FP16),
    ("sm__pipe_fp64", Level.FP64),
    ("sm__inst_executed_pipe_fp64", Level.FP64),
    ("sm__pipe_tensor", Level.TENSOR),
    ("sm__pipe_tc", Level.TENSOR),
    ("sm__inst_executed_pipe_tensor", Level.TENSOR),
    ("sm__inst_executed_pipe_tc", Level.TENSOR),
    ("sm__pipe_fma", Level.FMA),
    ("sm__inst_executed_pipe_fma", Level.FMA),
    ("sm__pipe_alu", Level.ALU),
    ("sm__inst_executed_pipe_alu", Level.ALU),
    ("sm__pipe_shared", None),  # the sum of pipes that share a port: each of them is there on its own
    ("sm__", Level.ISSUE),
    ("smsp__", Level.ISSUE),
    ("idc__", Level.ISSUE),
)
KNOWN_PARTS = tuple(
    stem + ELAPSED
    for stem in (
        "l1tex__data_bank_reads",
        "l1tex__data_bank_writes",
        "l1tex__data_pipe_lsu_wavefronts",
        "l1tex__f_wavefronts",
        "l1tex__lsu_writeback_active",
        "l1tex__lsuin_requests",
        "l1tex__m_l1tex2xbar_req_cycles_active",
        "l1tex__m_xbar2l1tex_read_sectors",
        "sm__inst_executed",
        "sm__inst_executed_pipe_lsu",
        "sm__inst_executed_pipe_xu",
        "sm__issue_active",
        "sm__pipe_alu_cycles_active",
        "sm__pipe_fma_cycles_active",
        "sm__pipe_fmaheavy_cycles_active",
        "sm__pipe_fp64_cycles_active",
        "sm__pipe_tensor_cycles_active",
    )
)
NEED_OF = {
    Level.DRAM: "dram_percent",
    Level.L2: "l2_percent",
    Level.LSU: "lsu_percent",
    Level.ISSUE: "issue_percent",
    Level.FMA: "fma_percent",
    Level.ALU: "alu_percent",
    Level.TENSOR: "tensor_percent",
    Level.FP16: "fp16_percent",
    Level.FP64: "fp64_percent",
    Level.XU: "xu_percent",
}


@dataclass(frozen=True)
class Use:
    """How busy a level is: percent of its peak over the kernel's duration, by which metric."""

    level: Level
    percent: float
    metric: str


def value(record: KernelRecord, need: str) -> float | None:
    """The finite value of a need, or None where it is absent or its collection failed."""
    found = record.get(need)
    return found if found is not None and math.isfinite(found) else None


def stamped(record: KernelRecord, number: float, unit: str) -> Quantity:
    """A number of a record with the record's stamp."""
    source = record.source
    return recorded(
        number,
        unit,
        device=record.device or "device unknown",
        date=source.date or "date unknown",
        tool=source.tool or source.file or "tool unknown",
    )


def level_of(metric: str) -> Level | None:
    """The level that a part of a throughput belongs to; None for one that only sums up others."""
    return next((level for prefix, level in BY_PREFIX if metric.startswith(prefix)), None)


def uses_of(record: KernelRecord, bandwidth: float | None = None) -> tuple[Use, ...]:
    """One `Use` a level that was counted, the busiest first.

    bandwidth: B/s of DRAM, by which counted bytes become a percentage where the report has none. L1_OR_LSU, MEMORY
    and SM are there when a total is above its largest known part. Parts come from both breakdowns.
    """
    found: dict[Level, Use] = {}
    for metric, percent in _parts(record):
        _keep_larger(found, level_of(metric), percent, metric)
    for level, need in NEED_OF.items():
        if (percent := value(record, need)) is not None:
            _keep_larger(found, level, _capped(record, percent) if level is Level.L2 else percent, need)
    if Level.DRAM not in found and (derived := _dram_from_bytes(record, bandwidth)) is not None:
        _keep_larger(found, Level.DRAM, derived, "DRAM bytes / duration / bandwidth")
    _add_l1_total(record, found)
    _add_unknown(record, found)
    return busiest_first(found.values())


def busiest_first(uses: Iterable[Use]) -> tuple[Use, ...]:
    """Sorted by percentage; of equal ones the level farther from the SM's pipes first."""
    return tuple(sorted(uses, key=lambda use: (-use.percent, list(Level).index(use.level))))


def _parts(record: KernelRecord) -> tuple[tuple[str, float], ...]:
    listed = (*record.breakdown("memory_percent"), *record.breakdown("sm_percent"))
    there = {name: record.metrics[name] for name in KNOWN_PARTS if math.isfinite(record.metrics.get(name, math.nan))}
    return tuple((there | dict(listed)).items())


def _keep_larger(found: dict[Level, Use], level: Level | None, percent: float, metric: str) -> None:
    if level is not None and (level not in found or percent > found[level].percent):
        found[level] = Use(level, percent, metric)


def _dram_from_bytes(record: KernelRecord, bandwidth: float | None) -> float | None:
    moved, duration = dram_bytes(record), value(record, "duration")
    if bandwidth is None or moved is None or not duration:
        return None
    return 100 * moved / duration / bandwidth


def _capped(record: KernelRecord, percent: float) -> float:
    """The memory total bounds its levels; on A100 the L2 total is above it, by a part that the tool does not list."""
    total = value(record, "memory_percent")
    return percent if total is None else min(percent, total)


def _l1_total(record: KernelRecord) -> float | None:
    """The L1 percentage over the elapsed cycles; the tool's page shows it over the active ones."""
    elapsed = record.metrics.get("l1tex__throughput" + ELAPSED, math.nan)
    if math.isfinite(elapsed):
        return elapsed
    total = value(record, "l1_percent")
    return None if total is None else _capped(record, total * min(1.0, active_share(record) or 1.0))


def _add_l1_total(record: KernelRecord, found: dict[Level, Use]) -> None:
    """The L1 total counts the requests of the LSU too: keep it where no part explains it."""
    total = _l1_total(record)
    if total is None:
        return
    known = max((found[level].percent for level in (Level.L1, Level.LSU) if level in found), default=-math.inf)
    if total <= known + UNEXPLAINED:
        return
    level = Level.L1 if Level.LSU in found else Level.L1_OR_LSU
    if level is Level.L1_OR_LSU and _one_unit_in_both(record):
        level = Level.LSU
    found.pop(Level.L1, None)
    found[level] = Use(level, total, "l1_percent")


def _one_unit_in_both(record: KernelRecord) -> bool:
    """Only the LSU is part of both totals: where they are equal, and not small, it is what they count."""
    sm, memory = value(record, "sm_percent"), value(record, "memory_percent")
    return sm is not None and memory is not None and sm > 10 and abs(sm - memory) < 0.02


def _add_unknown(record: KernelRecord, found: dict[Level, Use]) -> None:
    memory = (*MEMORY_LEVELS, Level.L1_OR_LSU)
    for need, unknown, levels in (("memory_percent", Level.MEMORY, memory), ("sm_percent", Level.SM, SM_LEVELS)):
        total = value(record, need)
        known = max((found[level].percent for level in levels if level in found), default=-math.inf)
        if total is not None and total > known + UNEXPLAINED:
            found[unknown] = Use(unknown, total, need)


def active_share(record: KernelRecord) -> float | None:
    """Share of the elapsed cycles in which an average SM held a warp; None where it was not counted."""
    active, elapsed = value(record, "sm_active_cycles"), value(record, "sm_elapsed_cycles")
    if elapsed is None:
        clock, duration = value(record, "sm_clock"), value(record, "duration")
        elapsed = clock * duration if clock and duration else None
    return active / elapsed if active is not None and elapsed else None


def tail_efficiency(waves: float) -> float:
    """Share of the last wave's slots that work fills: waves / ⌈waves⌉."""
    return waves / math.ceil(waves) if waves > 0 else 0.0


def stalls(record: KernelRecord) -> tuple[tuple[str, float, float], ...]:
    """(reason, cycles, share of all cycles between two instructions of a warp), the longest first.

    `selected` is no stall and is left out, but its cycles count. () where no stall was collected.
    """
    found = {reason: value(record, f"stall_{reason}") for reason in STALLS}
    cycles = {reason: number for reason, number in found.items() if number is not None}
    total = max(value(record, "warp_latency") or 0.0, sum(cycles.values()))
    if total <= 0:
        return ()
    waits = ((reason, number, number / total) for reason, number in cycles.items() if reason != "selected")
    return tuple(sorted(waits, key=lambda wait: (-wait[1], wait[0])))


def dram_bytes(record: KernelRecord) -> float | None:
    """Bytes that crossed DRAM's bus: counted, read plus written, or rate times duration."""
    if (counted := value(record, "dram_bytes")) is not None:
        return counted
    read, written = value(record, "dram_read_bytes"), value(record, "dram_write_bytes")
    if read is not None and written is not None:
        return read + written
    rate, duration = value(record, "dram_bytes_per_second"), value(record, "duration")
    return rate * duration if rate is not None and duration is not None else None


def fp32_rate(record: KernelRecord) -> float | None:
    """FLOP/s that the FP32 pipes did: (fadd + fmul + 2·ffma) a cycle · clock; None where it was not counted."""
    counts = [value(record, need) for need in ("fadd_per_cycle", "fmul_per_cycle", "ffma_per_cycle")]
    clock = value(record, "sm_clock")
    if None in counts or clock is None:
        return None
    return (counts[0] + counts[1] + 2 * counts[2]) * clock


def fp32_peak(record: KernelRecord) -> float | None:
    """FLOP/s of the FP32 pipes at the clock that the kernel ran at."""
    per_cycle, clock = value(record, "fp32_peak_per_cycle"), value(record, "sm_clock")
    return per_cycle * clock if per_cycle and clock else None


def dram_peak(record: KernelRecord) -> float | None:
    """B/s of DRAM at the clock that it ran at."""
    per_cycle, clock = value(record, "dram_peak_bytes_per_cycle"), value(record, "dram_clock")
    return per_cycle * clock if per_cycle and clock else None


def sectors_per_request(record: KernelRecord) -> float | None:
    """32-byte sectors that one warp's global load touches; None without loads."""
    sectors, requests = value(record, "global_load_sectors"), value(record, "global_load_requests")
    return sectors / requests if sectors is not None and requests else None
