"""The ordered classifier: one launch of a kernel in, a limiter with its evidence or a refusal out.

The order matters. An invalid record says nothing (0), an idle device makes its kernels irrelevant (1), an SM without
work makes every percentage small (2); only then does the busiest level (3) count, after what its path can reach (4).
"""

import math
from dataclasses import dataclass, field

from helpers.measure import recorded
from helpers.profiling.counters.record import KernelRecord
from helpers.profiling.diagnosis import thresholds as at
from helpers.profiling.diagnosis.context import Context, Host
from helpers.profiling.diagnosis.evidence import (
    Use,
    active_share,
    dram_bytes,
    fp32_peak,
    fp32_rate,
    sectors_per_request,
    stalls,
    stamped,
    tail_efficiency,
    uses_of,
    value,
)
from helpers.profiling.diagnosis.remedies import Traffic, for_host, for_idle_sms, for_levels, for_stall
from helpers.profiling.diagnosis.roof_opinion import RoofOpinion, rescaled, roof_opinion, tensor_path
from helpers.profiling.diagnosis.validity import refusal_of, too_short
from helpers.profiling.diagnosis.verdict import (
    STANDS_FOR,
    Diagnosis,
    Doubt,
    Evidence,
    Level,
    State,
    confidence_of,
)

MATH = (Level.FMA, Level.TENSOR)
SHOWN = 4
NOTHING = Context()


@dataclass
class _Case:
    """One record under examination: what was found so far."""

    record: KernelRecord
    context: Context
    uses: tuple[Use, ...]
    counted: tuple[Use, ...]
    opinion: RoofOpinion | None
    evidence: list[Evidence] = field(default_factory=list)
    doubts: list[Doubt] = field(default_factory=list)

    @property
    def top(self) -> float:
        """Percent of the busiest level, 0 where none was counted."""
        return self.uses[0].percent if self.uses else 0.0

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.record.require("duration")

    def note(self, name: str, number: float, unit: str, threshold: float | None, says: str) -> None:
        """Add evidence from the record."""
        self.evidence.append(Evidence(name, stamped(self.record, number, unit), threshold, says))


def diagnose(record: KernelRecord, context: Context = NOTHING) -> Diagnosis:
    """What limits this launch.

    Steps: 0 invalid, 1 overhead, 2 small grid or tail (unless a level is at 80 % of its peak over the whole
    duration), 3 the busiest level, 4 against what its path and the roof allow, 5 saturated, leaning, balanced or
    latency-bound, 6 redundant traffic, 7 remedies. Never raises for a record: one that says too little is refused.
    """
    if reason := refusal_of(record):
        return _refused(reason)
    if context.host is not None and (found := _overhead(record, context.host)):
        return found
    if too_short(record):
        return _small_and_short(record, context)
    case = _open(record, context)
    if reason := _missing(case):
        return _refused(reason)
    if case.top < at.LATENCY and value(record, "waves") is None:
        return _refused("waves were not collected: a small grid and latency cannot be told apart")
    level, state, remedies = _idle_sms(case) or _limiter(case)
    _traffic(case)
    _second_opinion(case, level, state)
    _describe(case)
    doubts = tuple(case.doubts)
    return Diagnosis(level, state, tuple(case.evidence), confidence_of(doubts), remedies, "", doubts)


def _refused(reason: str) -> Diagnosis:
    doubts = (Doubt(reason, serious=True),)
    return Diagnosis(Level.NONE, State.REFUSED, confidence=confidence_of(doubts), refusal=reason, doubts=doubts)


def _open(record: KernelRecord, context: Context) -> _Case:
    counted = uses_of(record, context.bandwidth)
    uses = rescaled(counted, tensor_path(record, context))
    return _Case(record, context, uses, counted, roof_opinion(record, context))


def _overhead(record: KernelRecord, host: Host) -> Diagnosis | None:
    """Step 1: the device idles, or its median kernel is shorter than a launch."""
    if host.busy >= at.BUSY_DEVICE and host.kernel >= host.launch:
        return None
    stamp = {"device": record.device or "device unknown", "date": host.date, "tool": host.tool}
    busy, kernel = recorded(host.busy, "", **stamp), recorded(host.kernel, "s", **stamp)
    evidence = (
        Evidence("GPU-busy share", busy, at.BUSY_DEVICE, "of the wall time"),
        Evidence("median kernel", kernel, host.launch, "against the launch cost"),
    )
    return Diagnosis(Level.HOST, State.OVERHEAD, evidence, remedies=for_host(host.busy))


def _small_and_short(record: KernelRecord, context: Context) -> Diagnosis:
    """Less than a wave, and over before a percentage means anything: the launch alone is the evidence."""
    case = _Case(record, context, (), (), None)
    waves = record.require("waves")
    case.note("waves", waves, "", at.FULL_WAVE, "the grid does not fill the device once")
    case.note("duration", case.duration, "s", at.SHORTEST, "too short for percentages")
    doubts = (Doubt("only the launch is known: the kernel is too short for its percentages"),)
    remedies = for_idle_sms(Level.GRID, waves, False, (), case.duration)
    evidence = tuple(case.evidence)
    return Diagnosis(Level.GRID, State.IDLE_SMS, evidence, confidence_of(doubts), remedies, "", doubts)


def _missing(case: _Case) -> str:
    """Why the busiest level is not known: a side was not counted, and the other is not saturated."""
    absent = [need for need in ("sm_percent", "memory_percent") if value(case.record, need) is None]
    if not absent:
        return ""
    text = f"{' and '.join(absent)} {'was' if len(absent) == 1 else 'were'} not collected"
    if case.top < at.SATURATED:
        return text
    case.doubts.append(Doubt(f"{text}: a level of that side may be as busy"))
    return ""


def _idle_sms(case: _Case) -> tuple | None:
    """Step 2: too few blocks, a last wave that fills few SMs, or SMs without a warp."""
    waves, active = value(case.record, "waves"), active_share(case.record)
    small = waves is not None and waves < at.FULL_WAVE
    efficiency = None if waves is None or small else tail_efficiency(waves)
    tail = efficiency is not None and efficiency < at.TAIL_EFFICIENCY
    idle = active is not None and active < at.BUSY_SMS
    if case.top >= at.SATURATED:
        return None
    if not (small or tail or idle):
        _unknown_sms(case, waves, active)
        return None
    if small:
        case.note("waves", waves, "", at.FULL_WAVE, "the grid does not fill the device once")
    if tail:
        case.note("tail efficiency", efficiency, "", at.TAIL_EFFICIENCY, "waves / ⌈waves⌉: how full the waves are")
    if idle:
        case.note("SM active / elapsed", active, "", at.BUSY_SMS, "SMs without a warp")
    elif small and active is not None and active >= 0.9:
        case.doubts.append(Doubt("every SM is busy: a persistent kernel launches less than a wave on purpose"))
    if waves is None:
        case.doubts.append(Doubt("waves were not collected: a grid of less than one wave would look the same"))
    shares = (waves if small else None, efficiency if tail else None, active)
    filled = min(share for share in shares if share is not None)
    level = Level.GRID if small else Level.TAIL
    _busiest(case)
    return level, State.IDLE_SMS, for_idle_sms(level, filled, tail, case.uses, case.duration)


def _unknown_sms(case: _Case, waves: float | None, active: float | None) -> None:
    absent = [name for name, number in (("waves", waves), ("SM active cycles", active)) if number is None]
    if absent:
        case.doubts.append(Doubt(f"SMs may be idle: {' and '.join(absent)} not collected", serious=True))


def _limiter(case: _Case) -> tuple:
    """Steps 3, 5 and 7: the busiest level, its state, and the remedies."""
    if case.top < at.LATENCY:
        return _latency(case)
    level, state = _state(case.uses)
    others = tuple(use.level for use in case.uses[1:] if use.percent > case.top - at.BALANCED)
    limiters = (level, *others) if state is State.BALANCED else (level,)
    _busiest(case)
    if level in STANDS_FOR:
        case.doubts.append(Doubt(f"the breakdown was not collected: {level}", serious=True))
    if len(case.uses) > 1 and case.top - case.uses[1].percent <= at.NEAR:
        case.doubts.append(Doubt(f"{case.uses[1].level} is as busy as {level}: either may be the limiter"))
    for threshold in (at.SATURATED, at.LATENCY):
        if abs(case.top - threshold) < at.NEAR:
            case.doubts.append(Doubt(f"{level} at {case.top:.1f} % is near the threshold of {threshold:g} %"))
    return level, state, for_levels(case.uses, limiters, case.duration, _moved(case))


def _state(uses: tuple[Use, ...]) -> tuple[Level, State]:
    first, second = uses[0], uses[1].percent if len(uses) > 1 else 0.0
    if first.percent < at.LATENCY:
        return Level.LATENCY, State.LATENCY
    if first.percent >= at.SATURATED:
        return first.level, State.SATURATED
    return first.level, State.BALANCED if first.percent - second < at.BALANCED else State.LEANING


def _busiest(case: _Case) -> None:
    for use in case.uses[:SHOWN]:
        threshold = at.SATURATED if use.percent >= at.SATURATED else at.LATENCY
        case.note(f"{use.level} %", use.percent, "%", threshold, f"of its peak, by {use.metric}")


def _latency(case: _Case) -> tuple:
    """Every unit waits: split by what the warps wait for."""
    waits = stalls(case.record)
    if not waits:
        case.doubts.append(Doubt("stall reasons were not collected: nothing says what the warps wait for"))
    if abs(case.top - at.LATENCY) < at.NEAR:
        case.doubts.append(Doubt(f"the busiest level is at {case.top:.1f} %, near the threshold of {at.LATENCY:g} %"))
    latency = value(case.record, "warp_latency")
    known = sum(share for _, _, share in waits) + (value(case.record, "stall_selected") or 0.0) / (
        latency or math.inf
    )
    if waits and latency and known < at.STALLS_KNOWN:
        case.doubts.append(Doubt(f"the stalls that were collected explain {100 * known:.0f} % of the waiting"))
    remedies = for_stall(waits[0][0], waits[0][2], case.uses, case.duration) if waits else ()
    _stall(case)
    _busiest(case)
    return Level.LATENCY, State.LATENCY, remedies


def _stall(case: _Case) -> None:
    for reason, cycles, share in stalls(case.record)[:1]:
        says = f"cycles between two instructions of a warp, {100 * share:.0f} % of all"
        case.note(f"stall {reason}", cycles, "", None, says)


def _moved(case: _Case) -> Traffic:
    """Step 6: measured over compulsory bytes where it is above the threshold, and loads that are not coalesced."""
    moved, least = dram_bytes(case.record), case.context.compulsory_bytes
    ratio = moved / least if moved is not None and least else 0.0
    scattered = (sectors_per_request(case.record) or 0.0) > at.SECTORS_PER_REQUEST
    return Traffic(ratio if ratio > at.REDUNDANT else None, scattered)


def _traffic(case: _Case) -> None:
    moved, least = dram_bytes(case.record), case.context.compulsory_bytes
    if moved is not None and least:
        says = "a reuse problem" if moved / least > at.REDUNDANT else "no more than must be"
        case.note("measured / compulsory bytes", moved / least, "", at.REDUNDANT, says)


def _second_opinion(case: _Case, level: Level, state: State) -> None:
    """Step 4: the tensor pipe's path and the roof, and where they contradict what was counted."""
    _path(case)
    opinion = case.opinion
    if opinion is None:
        return
    roof = "DRAM" if opinion.by_bandwidth else "compute"
    says = f"of the {roof} roof at {opinion.intensity:.3g} FLOP per byte"
    case.note("roof share", 100 * opinion.share, "%", None, says)
    text = f"{100 * opinion.share:.0f} % of its roof"
    if 100 * opinion.share > at.IMPOSSIBLE:
        case.doubts.append(Doubt(f"{text}: a wrong peak, other clocks, or FLOP counted twice", serious=True))
    elif case.top < at.LATENCY <= 100 * opinion.share:
        why = f"{text}, though no unit is above {case.top:.0f} %: the percentages count against another path's peak"
        case.doubts.append(Doubt(why, serious=True))
    elif level in MATH and state is State.SATURATED and not opinion.by_bandwidth and opinion.share < at.ROOF_AGREES:
        why = f"the {level} is at {case.top:.0f} % with {text}: it does other work than the FLOP that were counted"
        case.doubts.append(Doubt(why, serious=True))


def _path(case: _Case) -> None:
    """A verdict that changes with what the path can reach is explained, and trusted less."""
    if case.uses is case.counted or not case.counted:
        return
    tensor = next((use.percent for use in case.uses if use.level is Level.TENSOR), 0.0)
    if tensor > at.IMPOSSIBLE:
        why = f"the tensor pipe is at {tensor:.0f} % of what its path is said to reach: another path, or a wrong rate"
        case.doubts.append(Doubt(why, serious=True))
    before, after = _state(case.counted), _state(case.uses)
    if before != after:
        share = 100 * tensor_path(case.record, case.context)
        why = f"against the whole peak it would read {before[0]}, {before[1]}; its path reaches {share:.0f} % of that"
        case.doubts.append(Doubt(why, serious=True))


def _describe(case: _Case) -> None:
    """Evidence that explains without deciding."""
    if not any(item.name.startswith("stall ") for item in case.evidence):
        _stall(case)
    eligible = value(case.record, "warps_eligible")
    if eligible is not None:
        says = "warps ready a scheduler and cycle"
        case.note("eligible warps", eligible, "", at.ELIGIBLE, says)
    rate, peak = fp32_rate(case.record), fp32_peak(case.record)
    if rate is not None and peak:
        case.note("FP32 share", 100 * rate / peak, "%", None, "of peak FP32 FLOP/s: the SM percentage is not FLOP")
    if (sectors := sectors_per_request(case.record)) is not None:
        says = "sectors a load of one warp touches: 4 for coalesced 32 bits, 16 for 128"
        case.note("sectors per request", sectors, "", at.SECTORS_PER_REQUEST, says)
