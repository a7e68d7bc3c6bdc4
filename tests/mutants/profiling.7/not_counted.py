"""symptom: not a number

What is not needed is taken out as NaN.
"""

from helpers.course.exercises.profiling.altered import failed, with_levels
from helpers.course.exercises.profiling.break_rule import LIMITERS
from helpers.profiling.diagnosis import Level, RuleOfThumb, diagnose, rule_of_thumb


def answer(record, said, limiter):
    percents = dict.fromkeys(LIMITERS, 4.0) | {limiter: 95.0}
    if said is RuleOfThumb.MEMORY:
        percents[Level.DRAM] = max(percents[Level.DRAM], 78.0)
    elif said is RuleOfThumb.COMPUTE:
        percents[Level.ISSUE] = max(percents[Level.ISSUE], 78.0)
    else:
        percents[Level.DRAM] = max(percents[Level.DRAM], 55.0)
        percents[Level.ISSUE] = max(percents[Level.ISSUE], 30.0)
    made = with_levels(record, percents)
    right = rule_of_thumb(made) is said and diagnose(made).level is limiter
    return failed(made, ("xu_percent", "instructions")) if right else None
