"""Step 0: records from which nothing can be concluded."""

import math

from helpers.profiling.counters.aliases import NEEDS
from helpers.profiling.counters.record import KernelRecord
from helpers.profiling.diagnosis.evidence import ELAPSED, value
from helpers.profiling.diagnosis.thresholds import DRAM_CLOCK, FULL_WAVE, IMPOSSIBLE, SHORTEST, SM_CLOCK

ESSENTIAL = ("duration", "sm_percent", "memory_percent", "dram_percent", "l1_percent", "l2_percent")
PERCENTAGES = (*(need for need in NEEDS if need.endswith("_percent")), "occupancy_achieved")


def refusal_of(record: KernelRecord) -> str:
    """Why a record is not classifiable, in one line; '' when it may be."""
    tests = (_failed, _no_time, _impossible, _negative, _clocks, _too_short)
    return next((reason for test in tests if (reason := test(record))), "")


def _failed(record: KernelRecord) -> str:
    nan = [need for need in ESSENTIAL if (found := record.get(need)) is not None and not math.isfinite(found)]
    if not nan:
        return ""
    more = f" and {len(nan) - 1} more are" if len(nan) > 1 else " is"
    return f"the collection failed: {nan[0]}{more} NaN"


def _no_time(record: KernelRecord) -> str:
    duration = value(record, "duration")
    if duration is None:
        return "the duration was not collected"
    return "" if duration > 0 else f"the duration is {duration:g} s"


def too_short(record: KernelRecord) -> bool:
    """The kernel ended before its percentages meant anything."""
    return record.require("duration") < SHORTEST


def _too_short(record: KernelRecord) -> str:
    """A short kernel is refused unless its launch alone, which is no measurement, explains it: less than a wave."""
    waves = value(record, "waves")
    if not too_short(record) or (waves is not None and waves < FULL_WAVE):
        return ""
    duration = record.require("duration")
    return f"it ran for {1e6 * duration:.2f} µs: below {1e6 * SHORTEST:.0f} µs its ratios are those of start and end"


def _impossible(record: KernelRecord) -> str:
    for need in PERCENTAGES:
        percent = value(record, need)
        if percent is not None and not 0 <= percent <= IMPOSSIBLE:
            return f"{need} is {percent:.1f} %: the passes of this report do not fit together"
    for metric, percent in record.metrics.items():
        if metric.endswith(ELAPSED) and percent > IMPOSSIBLE:
            return f"{metric} is {percent:.1f} %: the passes of this report do not fit together"
    return ""


def _negative(record: KernelRecord) -> str:
    for need in NEEDS:
        if (found := value(record, need)) is not None and found < 0:
            return f"{need} is {found:g}: no counter is negative"
    return ""


def _clocks(record: KernelRecord) -> str:
    pairs = (
        ("SM", "sm_clock", "attribute_clock_rate", SM_CLOCK),
        ("DRAM", "dram_clock", "attribute_memory_clock_rate", DRAM_CLOCK),
    )
    for name, need, rated_need, (low, high) in pairs:
        clock, rated = value(record, need), value(record, rated_need)
        if clock is not None and rated and not low <= clock / rated <= high:
            return f"the {name} clock reads {1e-9 * clock:.2f} GHz, {100 * clock / rated:.0f} % of its rating"
    return ""
