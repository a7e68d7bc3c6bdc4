"""symptom: wrong value

Only up to the limiter's own peak, as if it could not be relieved.
"""

import math

from helpers.course.exercises.profiling.diagnose import MENU, Reading
from helpers.profiling.diagnosis import Level
from helpers.profiling.diagnosis.evidence import active_share, stalls, tail_efficiency, uses_of


def refused(record):
    sides = [record.get(f"{side}_percent") for side in ("sm", "memory", "dram", "l1", "l2")]
    percents = [number for name, number in record.metrics.items() if "pct_of_peak" in name]
    known = [*(side for side in sides if side is not None), record.get("duration")]
    return None in sides[:2] or any(map(math.isnan, known)) or max(percents) > 105 or known[-1] < 3e-6


def answer(record):
    if refused(record):
        return Reading(Level.NONE, {}, "measure again", 1.0)
    uses, waves, active = uses_of(record), record.require("waves"), active_share(record)
    top, second = uses[:2]
    filled = waves if waves < 1 else tail_efficiency(waves)
    if top.percent < 80 and (waves < 1 or min(filled, active) < 0.75):
        limiter, remedy = (Level.GRID, "more blocks") if waves < 1 else (Level.TAIL, "whole waves")
        evidence = {"waves": waves, "SM active / elapsed": active}
        gain = min(1 / min(filled, active), 100 / top.percent)
    elif top.percent < 60:
        reason, cycles, share = stalls(record)[0]
        limiter, remedy = Level.LATENCY, "wait less"
        evidence = {f"stall {reason}": cycles, top.metric: top.percent}
        gain = min(1 / (1 - share), 100 / top.percent)
    else:
        limiter, evidence = top.level, {use.metric: use.percent for use in (top, second)}
        remedy = next(key for key, one in MENU.items() if limiter in one.helps)
        left = [use.percent for use in uses if use.level not in MENU[remedy].relieves]
        gain = min(MENU[remedy].factor, 100 / top.percent)
    gain = max(1.0, min(gain, record.require("duration") / 3e-6))
    return Reading(limiter, evidence, remedy, gain)
