"""What really limits the teaching kernels, written by hand from their source code and counters, and made records."""

from dataclasses import dataclass, field

from helpers.profiling.counters.aliases import spellings
from helpers.profiling.counters.record import KernelRecord, Source
from helpers.profiling.diagnosis import Bottleneck, Confidence, Context, Level, NvidiaVerdict, RuleOfThumb, State

DATA_STAGE = "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed"
NOTHING = Context()


def made(name="made", device="NVIDIA A100 80GB PCIe", metrics=(), **needs):
    """A record by needs: `made(duration=1e-3, sm_percent=40)`. metrics: more, by the tool's own names."""
    found = {spellings(need)[0]: float(value) for need, value in needs.items()}
    source = Source("made.ncu-rep", "ncu 2026.1", "2026-12-01")
    return KernelRecord(name, device, (8, 0), metrics=found | dict(metrics), source=source)


@dataclass(frozen=True)
class Truth:
    """One kernel: file and place in it, what limits it and why, and what the two other rules say.

    evidence: by the start of its name, the bounds that its number must lie in. remedy: a word of the remedy that
    helps. confidence: None where any will do.
    """

    case: str
    file: str
    place: int
    level: Level
    state: State
    why: str
    thumb: RuleOfThumb
    nvidia: NvidiaVerdict | None
    evidence: dict = field(default_factory=dict)
    remedy: str = ""
    confidence: Confidence | None = None
    context: Context = NOTHING
    stall: str = ""


MEMORY, COMPUTE, NEITHER = RuleOfThumb.MEMORY, RuleOfThumb.COMPUTE, RuleOfThumb.UNCLASSIFIED
A10G = "esmm_a10g_sgemm_ladder_5c6231e.ncu-rep"
RTX3090 = "leimao_rtx3090_gemm_naive.ncu-rep"
A40 = "indexspaces_a40_julia_74de19f.ncu-rep"
A100 = "panjd_a100_cutlass_gemm.ncu-rep"
NAIVE, SAXPY = "olajide_rtx5070_gemm_naive.ncu.csv", "olajide_rtx5070_saxpy.ncu.csv"
T4 = "nsightful_t4_copy_blocked.details.csv"
SATURATED_COMPUTE = NvidiaVerdict(Bottleneck.COMPUTE_SATURATED)
SMALL_GRID = NvidiaVerdict(Bottleneck.SMALL_GRID)

TRUTHS = (
    Truth(
        "rtx3090-uncoalesced",
        RTX3090,
        0,
        Level.L1,
        State.SATURATED,
        "each thread of a warp reads its own row: a load needs many passes of the L1 data stage, and DRAM sleeps",
        NEITHER,
        NvidiaVerdict(Bottleneck.MEMORY_SATURATED, "L1"),
        {"L1 %": (98, 99), "stall lg_throttle": (150, 160), "sectors per request": (16, 17)},
        "coalesce",
        Confidence.HIGH,
        stall="lg_throttle",
    ),
    Truth(
        "rtx3090-coalesced",
        RTX3090,
        1,
        Level.LSU,
        State.SATURATED,
        "two loads for one multiply-add: the load instructions fill the LSU, and 6 % of the FP32 peak is left",
        COMPUTE,
        SATURATED_COMPUTE,
        {"LSU %": (98, 99), "FP32 share": (6, 6.3), "stall lg_throttle": (11, 12)},
        "tile in registers",
        Confidence.HIGH,
        stall="lg_throttle",
    ),
    Truth(
        "a40-stream",
        A40,
        0,
        Level.DRAM,
        State.SATURATED,
        "a stream of stores at 96 % of the bus: memory-bound for once",
        MEMORY,
        NvidiaVerdict(Bottleneck.MEMORY_SATURATED, "DRAM"),
        {"DRAM %": (95, 96)},
        "half the bytes",
        Confidence.HIGH,
        stall="drain",
    ),
    Truth(
        "a40-mixed",
        A40,
        1,
        Level.ALU,
        State.LEANING,
        "bit arithmetic on packed integers beside tensor products: the ALU leads, others follow",
        NEITHER,
        NvidiaVerdict(Bottleneck.COMPUTE),
        {"ALU pipe %": (66, 67), "tensor pipe %": (53, 54), "issue slots %": (56, 57)},
        "bit arithmetic",
        stall="math_pipe_throttle",
    ),
    Truth(
        "a100-partial-wave",
        A100,
        0,
        Level.GRID,
        State.IDLE_SMS,
        "96 blocks for 108 SMs that hold two each: 12 SMs have none, the others half of what they hold",
        NEITHER,
        SMALL_GRID,
        {"waves": (0.44, 0.45), "SM active": (0.6, 0.7), "tensor pipe %": (17, 18), "FP32 share": (0, 0)},
        "split-K",
        stall="wait",
    ),
    Truth(
        "gtx1660ti-one-block",
        "mojo_gtx1660ti_tiny_grids.ncu-rep",
        0,
        Level.GRID,
        State.IDLE_SMS,
        "one block on 24 SMs, for 1.6 µs: launched in vain",
        NEITHER,
        SMALL_GRID,
        {"waves": (0.002, 0.003), "duration": (1.5e-6, 1.7e-6)},
        confidence=Confidence.MEDIUM,
    ),
    Truth(
        "a10g-failed",
        "esmm_a10g_nan_failed_kernel_e22c00d.ncu-rep",
        3,
        Level.NONE,
        State.REFUSED,
        "the collection failed: every counter is NaN",
        NEITHER,
        None,
        confidence=Confidence.LOW,
    ),
    Truth(
        "rtx3070-scan",
        "speedyscan_rtx3070_scan.ncu-rep",
        0,
        Level.LATENCY,
        State.LATENCY,
        "warps of a block wait for each other at every step of the scan",
        NEITHER,
        NvidiaVerdict(Bottleneck.LATENCY),
        {"stall barrier": (20, 21), "eligible warps": (0.5, 0.6), "DRAM %": (53, 54)},
        "barrier",
        stall="barrier",
    ),
    Truth(
        "rtx5070-naive-gemm",
        NAIVE,
        0,
        Level.SM,
        State.SATURATED,
        "12 counters, and no breakdown: some unit of the SM is full, the file does not say which (it is the LSU)",
        NEITHER,
        None,
        {"SM, unit unknown %": (97, 98), "sectors per request": (2.5, 2.5)},
        confidence=Confidence.LOW,
    ),
    Truth(
        "rtx5070-saxpy-alone",
        SAXPY,
        0,
        Level.NONE,
        State.REFUSED,
        "bytes and time, but no percentage of the memory side, and no roof to hold them against",
        NEITHER,
        None,
    ),
    Truth(
        "rtx5070-saxpy-with-roof",
        SAXPY,
        0,
        Level.DRAM,
        State.SATURATED,
        "178 MB in 293 µs against a bus of 672 GB/s, as the driver of that machine reports it",
        NEITHER,
        None,
        {"DRAM %": (89, 92), "measured / compulsory": (0.85, 1.0)},
        "half the bytes",
        context=Context(bandwidth=672e9, compulsory_bytes=3 * 4 * 2**24),
    ),
    Truth(
        "t4-blocked-copy",
        T4,
        0,
        Level.DRAM,
        State.LEANING,
        "each thread copies a block of its own: 8 of every 32 bytes moved are used, so DRAM is busy with waste",
        NEITHER,
        NvidiaVerdict(Bottleneck.MEMORY, "DRAM"),
        {"DRAM %": (61, 62), "measured / compulsory": (15, 16)},
        "each byte once",
        context=Context(compulsory_bytes=2 * 8 * 2**24),
    ),
    Truth(
        "a10g-naive",
        A10G,
        0,
        Level.L1,
        State.SATURATED,
        "the same uncoalesced product as on the RTX 3090",
        NEITHER,
        NvidiaVerdict(Bottleneck.MEMORY_SATURATED, "L1"),
        {"L1 %": (97, 98)},
        "coalesce",
    ),
    Truth(
        "a10g-shared-tiles",
        A10G,
        2,
        Level.LSU,
        State.SATURATED,
        "tiles in shared memory: the loads moved from L1 to shared memory, and are as many",
        COMPUTE,
        SATURATED_COMPUTE,
        {"LSU %": (87, 88)},
        "tile in registers",
    ),
    Truth(
        "a10g-one-wave-short",
        A10G,
        4,
        Level.GRID,
        State.IDLE_SMS,
        "64 blocks for 80 SMs",
        NEITHER,
        SMALL_GRID,
        {"waves": (0.8, 0.8)},
        "split-K",
    ),
    Truth(
        "a10g-integer-heavy",
        "esmm_a10g_nan_failed_kernel_e22c00d.ncu-rep",
        0,
        Level.ISSUE,
        State.SATURATED,
        "index arithmetic keeps the schedulers busy; the LSU is at a third",
        COMPUTE,
        SATURATED_COMPUTE,
        {"issue slots %": (87, 88), "LSU %": (33, 34)},
        "fewer instructions",
    ),
)


def cutlass_on_rtx5090(**more):
    """The published figures of a bf16 CUTLASS GEMM on a GeForce RTX 5090: no report of it is at hand.

    12.53 GFLOP in 111.8 µs at 2.0 GHz; SM 32 %, memory 28 %; SMs active in 161 of 225 thousand cycles. The peak with
    fp32 sums is 209.5 TFLOP/s at 2.407 GHz.
    Its waves and DRAM bytes were not published: these are made, and decide nothing.
    """
    needs = {
        "duration": 111.8e-6,
        "sm_percent": 32,
        "memory_percent": 28,
        "dram_percent": 10,
        "l2_percent": 28,
        "tensor_percent": 32,
        "sm_active_cycles": 161e3,
        "sm_elapsed_cycles": 225e3,
        "sm_clock": 2.0e9,
        "dram_bytes": 18e6,
        "waves": 4,
    }
    return made("cutlass bf16 GEMM", "NVIDIA GeForce RTX 5090", **(needs | more))
