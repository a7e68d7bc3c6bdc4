"""symptom: not a number

A failed collection reads 0, and 0 limits nothing.
"""

import math

from helpers.course.exercises.profiling.diagnose import MENU, Reading
from helpers.profiling.diagnosis.evidence import uses_of


def answer(record):
    uses = [use for use in uses_of(record) if math.isfinite(use.percent)]
    remedy = next((key for key, one in MENU.items() if uses[0].level in one.helps), "measure again")
    return Reading(uses[0].level, {use.metric: use.percent for use in uses[:2]}, remedy, 1.0)
