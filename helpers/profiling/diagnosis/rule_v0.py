"""The rule of thumb: two thresholds on two percentages. Kept to be broken."""

import math
from enum import StrEnum

from helpers.profiling.counters.record import KernelRecord


class RuleOfThumb(StrEnum):
    """What the rule of thumb can say."""

    MEMORY = "memory-bound"
    COMPUTE = "compute-bound"
    UNCLASSIFIED = "unclassified"


def rule_of_thumb(record: KernelRecord) -> RuleOfThumb:
    """`memory-bound` when SM < 25 % and DRAM > 75 %, `compute-bound` when SM > 75 % and DRAM < 50 %.

    Everything else is `unclassified`, as is a record in which one of the two is absent or NaN.
    """
    sm, dram = (record.get(need) for need in ("sm_percent", "dram_percent"))
    if sm is None or dram is None or math.isnan(sm) or math.isnan(dram):
        return RuleOfThumb.UNCLASSIFIED
    if sm < 25 and dram > 75:
        return RuleOfThumb.MEMORY
    if sm > 75 and dram < 50:
        return RuleOfThumb.COMPUTE
    return RuleOfThumb.UNCLASSIFIED
