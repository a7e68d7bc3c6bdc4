"""symptom: wrong value

What the rule says is left to chance.
"""

from helpers.course.exercises.profiling.altered import with_levels
from helpers.course.exercises.profiling.break_rule import LIMITERS


def answer(record, said, limiter):
    percents = dict.fromkeys(LIMITERS, 4.0) | {limiter: 95.0}
    made = with_levels(record, percents)
    return made
