"""symptom: wrong value

The rule says what was wanted, and another unit is the busiest.
"""

from helpers.course.exercises.profiling.altered import with_levels
from helpers.course.exercises.profiling.break_rule import LIMITERS
from helpers.profiling.diagnosis import Level, RuleOfThumb, diagnose, rule_of_thumb


def answer(record, said, limiter):
    percents = dict.fromkeys(LIMITERS, 4.0) | {limiter: 30.0}
    if said is RuleOfThumb.MEMORY:
        percents[Level.DRAM] = max(percents[Level.DRAM], 78.0)
    elif said is RuleOfThumb.COMPUTE:
        percents[Level.ISSUE] = max(percents[Level.ISSUE], 78.0)
    else:
        percents[Level.DRAM] = max(percents[Level.DRAM], 55.0)
        percents[Level.ISSUE] = max(percents[Level.ISSUE], 30.0)
    made = with_levels(record, percents)
    return made if limiter is not Level.DRAM or said is not RuleOfThumb.COMPUTE else None
