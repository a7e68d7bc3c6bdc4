"""symptom: wrong value

What was seen on a device once is true of it for ever.
"""

from helpers.course.exercises.profiling.diagnose import MENU, Reading
from helpers.profiling.diagnosis import Level, State, diagnose

SEEN = {"A40": Level.DRAM, "A10G": Level.LSU, "RTX 3090": Level.L1, "RTX 3070": Level.LATENCY, "A100": Level.GRID}


def answer(record):
    if diagnose(record).state is State.REFUSED:
        return Reading(Level.NONE, {}, "measure again", 1.0)
    limiter = next(level for name, level in SEEN.items() if name in record.device)
    return Reading(limiter, {}, next(key for key, one in MENU.items() if limiter in one.helps), 1.0)
