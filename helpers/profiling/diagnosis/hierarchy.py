"""A counted kernel under the roofs of its own device: one intensity for each level of memory.

All numbers are at the clocks at which the kernel ran. Source of the method: Yang, Kurth, Williams, Hierarchical
Roofline Analysis for GPUs, 2019.
"""

import math

from helpers.profiling.counters.record import CounterError, KernelRecord
from helpers.profiling.diagnosis.evidence import dram_bytes, dram_peak, fp32_peak, fp32_rate, value
from helpers.profiling.roofline import Point, Roofs

SECTOR = 32  # bytes
L1_BYTES_PER_CYCLE = 128  # of one SM, since Volta. Source: NVIDIA's architecture white papers
L2_BUSY = "lts__t_sectors.avg.pct_of_peak_sustained_elapsed"


def moved_bytes(record: KernelRecord) -> dict[str, float]:
    """Bytes that passed each level, for the levels that were counted.

    L1: sectors of global loads and stores. L2: all its sectors. DRAM: read and written.
    """
    loads, stores = (value(record, f"global_{what}_sectors") for what in ("load", "store"))
    l2 = value(record, "l2_bytes")
    if l2 is None and (sectors := value(record, "l2_sectors")) is not None:
        l2 = SECTOR * sectors
    l1 = None if loads is None or stores is None else SECTOR * (loads + stores)
    found = {"L1": l1, "L2": l2, "DRAM": dram_bytes(record)}
    return {level: number for level, number in found.items() if number is not None}


def kernel_roofs(record: KernelRecord) -> Roofs:
    """The FP32 roof and the bandwidth roofs of the device at the kernel's clocks.

    DRAM by its width and clock, L1 by 128 B a cycle and SM, L2 by its bytes over its percentage, where they are
    there. Raises `CounterError` for a record without the FP32 peak or without any bandwidth.
    """
    moved, duration, clock = moved_bytes(record), value(record, "duration"), value(record, "sm_clock")
    peak, busy = fp32_peak(record), record.metrics.get(L2_BUSY, math.nan)
    count = value(record, "sm_count")
    bandwidth = {
        "L1": L1_BYTES_PER_CYCLE * count * clock if count and clock else None,
        "L2": moved["L2"] / duration / (busy / 100) if duration and moved.get("L2") and busy > 0 else None,
        "DRAM": dram_peak(record),
    }
    known = {level: rate for level, rate in bandwidth.items() if rate}
    if not peak or not known:
        raise CounterError(
            "the record holds no FP32 peak, or no bandwidth",
            where=f"{record.name[:60]} in {record.source.file}",
            mend="use a kernel of the full set, or collect needs=ROOFLINE",
        )
    return Roofs({"fp32": peak}, known)


def kernel_points(record: KernelRecord, name: str) -> tuple[Point, ...]:
    """The kernel once for each level that it moved bytes through: its FLOP over those bytes, and its FP32 rate.

    () for a kernel without FP32 FLOP: its place is under the bandwidth roofs alone. Raises `CounterError` where the
    duration was not counted.
    """
    duration, rate = record.require("duration"), fp32_rate(record)
    if not rate:
        return ()
    return tuple(
        Point(name, rate * duration / number, rate, duration, 1, level, "fp32")
        for level, number in moved_bytes(record).items()
        if number > 0
    )
