"""symptom: wrong interface

Only the counters that the rule reads are left.
"""

from dataclasses import replace

from helpers.course.exercises.profiling.altered import with_levels
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
    kept = {name: number for name, number in made.metrics.items() if "pct_of_peak" in name}
    return replace(made, metrics=kept) if right else None
