"""symptom: wrong value

All units follow the limiter closely: another one may limit as well.
"""

from helpers.course.exercises.profiling.altered import with_levels
from helpers.course.exercises.profiling.break_rule import LIMITERS
from helpers.profiling.diagnosis import Level, RuleOfThumb, diagnose, rule_of_thumb


def answer(record, said, limiter):
    percents = dict.fromkeys(LIMITERS, 90.0) | {limiter: 95.0}
    if said is RuleOfThumb.MEMORY:
        percents[Level.DRAM] = max(percents[Level.DRAM], 78.0)
    elif said is RuleOfThumb.COMPUTE:
        percents[Level.ISSUE] = max(percents[Level.ISSUE], 78.0)
    else:
        percents[Level.DRAM] = max(percents[Level.DRAM], 55.0)
        percents[Level.ISSUE] = max(percents[Level.ISSUE], 30.0)
    made = with_levels(record, percents)
    right = rule_of_thumb(made) is said and diagnose(made).level is limiter
    return made if right else None
