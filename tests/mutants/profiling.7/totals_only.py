"""symptom: wrong value

The two numbers of the rule are set, and the parts stay.
"""

from dataclasses import replace

from helpers.profiling.counters.aliases import spellings
from helpers.profiling.diagnosis import RuleOfThumb

SIDES = {RuleOfThumb.MEMORY: (10.0, 90.0), RuleOfThumb.COMPUTE: (90.0, 10.0), RuleOfThumb.UNCLASSIFIED: (50.0, 60.0)}


def answer(record, said, limiter):
    sm, dram = SIDES[said]
    sides = {spellings("sm_percent")[0]: sm, spellings("dram_percent")[0]: dram}
    return replace(record, metrics={**record.metrics, **sides})
