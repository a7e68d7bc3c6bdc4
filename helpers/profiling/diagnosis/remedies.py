"""Step 7: what to try for each limiter, and the most that it can bring."""

import math
from dataclasses import dataclass

from helpers.measure import predicted
from helpers.profiling.diagnosis.evidence import Use
from helpers.profiling.diagnosis.thresholds import SHORTEST
from helpers.profiling.diagnosis.verdict import STANDS_FOR, Level, Remedy

DATA = (Level.DRAM, Level.L2)
ACCESS = (*DATA, Level.L1)
INSTRUCTIONS = (*ACCESS, Level.LSU, Level.ISSUE, Level.ALU)


@dataclass(frozen=True)
class Advice:
    """relieves: levels whose work falls with the remedy. factor: by which the limiter's work can fall at most."""

    what: str
    why: str
    relieves: tuple[Level, ...]
    factor: float = math.inf


COALESCE = Advice(
    "coalesce: let neighbouring threads touch neighbouring addresses",
    "a request that spans fewer sectors and banks takes fewer passes of the L1 data stage, and moves fewer bytes",
    ACCESS,
)
FOR_LEVEL: dict[Level, tuple[Advice, ...]] = {
    Level.DRAM: (
        Advice(
            "fuse the kernel with its neighbours",
            "what one writes and the next reads again need not cross DRAM",
            INSTRUCTIONS,
        ),
        Advice("store in half the bytes", "quantised or 16-bit data move in half the time", INSTRUCTIONS, 2.0),
    ),
    Level.L2: (
        Advice("tile for reuse in shared memory", "a byte used twice in the SM is asked of L2 once", INSTRUCTIONS),
    ),
    Level.L1: (COALESCE,),
    Level.LSU: (
        Advice(
            "tile in registers, and load 128 bits at once",
            "fewer load instructions for the same arithmetic",
            INSTRUCTIONS,
        ),
    ),
    Level.ISSUE: (
        Advice(
            "issue fewer instructions: wider loads, less index arithmetic, fused multiply-add",
            "the schedulers cannot issue more a cycle",
            (Level.ISSUE, Level.ALU, Level.LSU),
        ),
    ),
    Level.FMA: (
        Advice("move the products to the tensor pipe", "it does more FLOP a cycle", (Level.FMA, Level.ISSUE)),
    ),
    Level.ALU: (
        Advice("simplify index and bit arithmetic", "integer work fills the ALU pipe", (Level.ALU, Level.ISSUE)),
    ),
    Level.TENSOR: (
        Advice(
            "halve the precision (FP8 for 16 bits)",
            "the pipe's rate doubles when the type halves",
            (Level.TENSOR, *INSTRUCTIONS),
            2.0,
        ),
    ),
    Level.FP16: (
        Advice("move the products to the tensor pipe", "it does more FLOP a cycle", (Level.FP16, Level.ISSUE)),
    ),
    Level.FP64: (
        Advice("use FP32 where the error allows it", "the FP64 pipe is the narrowest", (Level.FP64, Level.ISSUE)),
    ),
    Level.XU: (
        Advice(
            "replace special functions by polynomials",
            "the XU pipe does a quarter of the FMA pipe's rate or less",
            (Level.XU,),
        ),
    ),
}
FOR_STALL = {
    "long_scoreboard": ("load earlier: unroll, prefetch, more warps", "warps wait for data from L1, L2 or DRAM"),
    "short_scoreboard": ("batch shared-memory accesses and special functions", "warps wait for shared memory or XU"),
    "barrier": ("even out the work before the barrier, or use smaller blocks", "warps wait for their siblings"),
    "lg_throttle": ("make fewer and wider global accesses", "the queue of local and global accesses is full"),
    "mio_throttle": ("make fewer and wider shared-memory accesses", "the memory input/output queue is full"),
    "tex_throttle": ("make fewer texture accesses", "the texture queue is full"),
    "math_pipe_throttle": ("mix instructions of several pipes", "warps wait for a busy math pipe"),
    "wait": ("unroll for more independent instructions", "warps wait out fixed latencies of arithmetic"),
    "no_instruction": ("make the code smaller: unroll less", "instructions are fetched too slowly"),
    "not_selected": ("issue fewer instructions", "warps are ready, and the scheduler takes one a cycle"),
    "membar": ("use fewer or narrower fences", "warps wait for a memory fence"),
    "branch_resolving": ("branch less", "warps wait for branch targets"),
    "imc_miss": ("read constants earlier, or from registers", "constants miss their cache"),
    "gmma": ("overlap more matrix products", "warps wait for the tensor pipe's results"),
    "sleeping": ("spin less", "warps sleep on purpose"),
    "drain": ("store earlier, and in fewer places", "warps wait for their last stores"),
}


@dataclass(frozen=True)
class Traffic:
    """ratio: measured over compulsory bytes, where it is redundant, else None. scattered: loads are not coalesced."""

    ratio: float | None = None
    scattered: bool = False


def for_levels(uses: tuple[Use, ...], limiters: tuple[Level, ...], duration: float, traffic: Traffic):
    """Remedies for saturated, leaning or balanced levels: against waste that was counted here, then all others.

    Of each kind the largest ceiling comes first. A ceiling is what the busiest level that a remedy leaves alone
    allows: 100 / its percentage. It does not say that the work *can* fall that far: a copy kernel uses so little else
    that fusion reads 77 times, whatever its neighbours are. Bytes moved again and loads that are not coalesced
    are work that this very launch is known to do in vain.
    duration, in seconds, bounds all: no kernel ends below 3 µs.
    """
    wasted = _wasted(traffic) if any(level in ACCESS for level in limiters) else []
    others = [advice for level in limiters for advice in FOR_LEVEL.get(level, ()) if advice not in wasted]
    groups = (wasted, dict.fromkeys(others))
    return tuple(one for group in groups for one in _sorted([_remedy(advice, uses, duration) for advice in group]))


def _wasted(traffic: Traffic) -> list[Advice]:
    """What takes away work that was counted and need not be done."""
    found = [COALESCE] if traffic.scattered else []
    if traffic.ratio is not None:
        why = f"{traffic.ratio:.1f} times the compulsory bytes are moved"
        found.append(Advice("move each byte once: tile or fuse", why, INSTRUCTIONS, traffic.ratio))
    return found


def _remedy(advice: Advice, uses: tuple[Use, ...], duration: float) -> Remedy:
    relieved = set(advice.relieves)
    relieved |= {name for name, parts in STANDS_FOR.items() if set(parts) <= relieved}
    others = [use for use in uses if use.level not in relieved and use.percent > 0]
    bounds = [(duration / SHORTEST, "duration / 3 µs")]
    if others:
        bounds.append((100 / others[0].percent, f"100 / {others[0].percent:.1f}: {others[0].level} is next"))
    if math.isfinite(advice.factor):
        bounds.append((advice.factor, f"the limiter's work falls by {advice.factor:.3g}"))
    factor, formula = min(bounds)
    return Remedy(advice.what, advice.why, predicted(max(1.0, factor), "×", formula))


def for_stall(reason: str, share: float, uses: tuple[Use, ...], duration: float) -> tuple[Remedy, ...]:
    """The remedy for a stall: Amdahl, 1 / (1 - share of the warps' cycles), until the busiest level is full."""
    if reason not in FOR_STALL:
        return ()
    what, why = FOR_STALL[reason]
    amdahl = (math.inf, "") if share >= 1 else (1 / (1 - share), f"1 / (1 - {share:.2f}), Amdahl")
    return (Remedy(what, why, _bounded([amdahl], uses, duration)),)


def for_idle_sms(level: Level, filled: float, last_wave: bool, uses: tuple[Use, ...], duration: float):
    """The remedy for SMs without work.

    filled: share of the device's slots or cycles that had work. last_wave: the last wave is what is part-filled.
    """
    if level is Level.GRID:
        what = "launch more blocks: smaller tiles, split-K, several problems in one launch"
        why = "the grid does not fill the device once"
    elif last_wave:
        what = "make the grid a multiple of a wave, or the kernel persistent"
        why = "SMs are idle while the last blocks end"
    else:
        what = "give one launch more work: fuse launches, or batch; even out the blocks"
        why = "SMs are idle while the first blocks start and the last ones end"
    return (Remedy(what, why, _bounded([(1 / filled, f"1 / {filled:.3g}")] if filled else [], uses, duration)),)


def for_host(busy: float) -> tuple[Remedy, ...]:
    """The remedy for a device that waits for the host: at best it is busy all the time."""
    what = "launch less: CUDA graphs, torch.compile, larger batches, no synchronisation"
    ceiling = predicted(1 / busy, "×", f"1 / {busy:.2f}") if busy else predicted(math.inf, "×", "1 / 0")
    return (Remedy(what, "the device waits for the host: no change to a kernel helps", ceiling),)


def _bounded(bounds: list[tuple[float, str]], uses: tuple[Use, ...], duration: float):
    bounds = [*bounds, (duration / SHORTEST, "duration / 3 µs")]
    if uses and uses[0].percent > 0:
        bounds.append((100 / uses[0].percent, f"100 / {uses[0].percent:.1f}: then {uses[0].level} is full"))
    factor, formula = min(bounds)
    return predicted(max(1.0, factor), "×", formula)


def _sorted(remedies: list[Remedy]) -> tuple[Remedy, ...]:
    return tuple(sorted(remedies, key=lambda remedy: -remedy.ceiling.value))
