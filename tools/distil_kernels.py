"""Distil the instructive kernels of the recorded reports into helpers/profiling/recordings/kernels.

python tools/distil_kernels.py FOLDER_OF_REPORTS [TARGET_FOLDER]

Needs the wheel of the extra `ncu`. The reports stay where they are; a test runs this and compares.
"""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

from helpers.profiling.counters.distil import distil, save
from helpers.profiling.counters.reader import read_kernels
from helpers.profiling.counters.record import KernelRecord
from helpers.profiling.recordings import KERNELS


@dataclass(frozen=True)
class Report:
    """A published report: its file, where it is from, and what the file itself does not say."""

    file: str
    origin: str
    device: str = ""
    tool: str = ""
    date: str = ""


LADDER = Report("esmm_a10g_sgemm_ladder_5c6231e.ncu-rep", "AveryClapp/ESMM-Research @5c6231e5, MIT")
SPARSE = Report("esmm_a10g_nan_failed_kernel_e22c00d.ncu-rep", "AveryClapp/ESMM-Research @e22c00d8, MIT")
JULIA = Report("indexspaces_a40_julia_74de19f.ncu-rep", "eschnett/IndexSpaces.jl @74de19f3, MIT")
NAIVE = Report("leimao_rtx3090_gemm_naive.ncu-rep", "leimao/Nsight-Compute-Docker-Image @c9a15636, MIT")
CUTLASS = Report("panjd_a100_cutlass_gemm.ncu-rep", "panjd123/cutlass @2981ece3, BSD-3-Clause")
SCAN = Report("speedyscan_rtx3070_scan.ncu-rep", "thedavidchu/speedy_scan @a2bc5b3c, MIT")
TINY = Report("mojo_gtx1660ti_tiny_grids.ncu-rep", "josiahls/cuda_learning_mojo @bb41bcc5, Apache-2.0")
SQUARE = Report(
    "gpumode_a100_square_ncu.txt", "gpu-mode/lectures @7cb40f67, Apache-2.0", "NVIDIA A100", "ncu (text page)"
)
COPY = Report(
    "nsightful_t4_copy_blocked.details.csv",
    "brycelelbach/nsightful @454dfa51, BSD-style",
    "Tesla T4",
    "ncu (details)",
)
BLACKWELL = {
    "origin": "Olajide-Badejo/GPU-Roofline-Profiler @14f29c68, MIT",
    "device": "NVIDIA GeForce RTX 5070",
    "tool": "ncu 2026.2.1",
    "date": "2026-07-22",
}
GEMM_5070 = Report("olajide_rtx5070_gemm_naive.ncu.csv", **BLACKWELL)
SAXPY_5070 = Report("olajide_rtx5070_saxpy.ncu.csv", **BLACKWELL)

CHOSEN = {
    "a10g_sgemm_naive": (LADDER, 0, "FP32 matrix product of 1024², one output per thread, uncoalesced loads"),
    "a10g_sgemm_coalesced": (LADDER, 1, "the same product, neighbouring threads load neighbouring elements"),
    "a10g_sgemm_shared": (LADDER, 2, "the same product, tiles of 32² in shared memory"),
    "a10g_sgemm_1d_tiles": (LADDER, 3, "the same product, 8 outputs per thread"),
    "a10g_sgemm_2d_tiles": (LADDER, 4, "the same product, 64 outputs per thread in 64 blocks: fewer than 80 SMs"),
    "a10g_sgemm_failed": (LADDER, 5, "a launch that failed: every counter is NaN"),
    "a10g_sparse_shared": (SPARSE, 0, "ESMM's matrix product through shared memory, one warp per block"),
    "a10g_sparse_shared_2": (
        SPARSE,
        1,
        "the same product with another split of the work: faster, and busier in DRAM",
    ),
    "a40_stream_store": (JULIA, 0, "an index-space kernel that only stores: DRAM nearly full, no FLOP at all"),
    "a40_int4_tensor_mix": (JULIA, 1, "an integer kernel that mixes ALU and tensor pipe, with DRAM at a third"),
    "rtx3090_gemm_uncoalesced": (NAIVE, 0, "FP32 matrix product with strided loads: the L1 data stage is full"),
    "rtx3090_gemm_coalesced": (NAIVE, 1, "the same product coalesced: the load/store unit's issue is full"),
    "a100_cutlass_gemm": (CUTLASS, 0, "CUTLASS int8 tensor-core product of 11 µs on less than one wave"),
    "a100_cutlass_gemm_second": (CUTLASS, 1, "the second product of the pair, on less than one wave"),
    "a100_cutlass_fused": (CUTLASS, 2, "both products fused into one kernel, on less than one wave"),
    "rtx3070_scan_barrier": (SCAN, 0, "prefix sum whose warps wait at barriers"),
    "gtx1660ti_one_block": (TINY, 0, "a warm-up kernel of one block of 64 threads on 24 SMs"),
    "gtx1660ti_divergent": (TINY, 1, "a branch divergence example, again of one block"),
    "rtx5070_gemm_naive": (GEMM_5070, 0, "FP32 matrix product of 2048², one output per thread"),
    "rtx5070_saxpy": (SAXPY_5070, 0, "SAXPY over 16.8 million elements"),
    "t4_copy_blocked": (COPY, 0, "copy in which each thread owns a contiguous block: 21 ms, DRAM at 62 %"),
    "a100_random_normal": (SQUARE, 0, "PyTorch fills a tensor with normal random numbers"),
    "a100_square_triton": (SQUARE, 1, "a Triton kernel that squares 1823 rows"),
    "a100_reduce": (SQUARE, 16, "a reduction of PyTorch on 174 blocks"),
}


def kernel(reports: Path, name: str) -> KernelRecord:
    """A chosen kernel, read from its report and distilled."""
    report, index, what = CHOSEN[name]
    record = read_kernels(reports / report.file)[index]
    source = replace(
        record.source,
        origin=report.origin,
        tool=report.tool or record.source.tool,
        date=report.date or record.source.date,
    )
    return replace(distil(record), device=report.device or record.device, source=source, what=what)


def main() -> None:
    """Write one JSON for each chosen kernel, and name it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reports", type=Path)
    parser.add_argument("target", type=Path, nargs="?", default=KERNELS)
    args = parser.parse_args()
    args.target.mkdir(parents=True, exist_ok=True)
    for name in CHOSEN:
        path = args.target / f"{name}.json"
        save(kernel(args.reports, name), path)
        print(f"{path.stat().st_size:6} B  {path.name}")


if __name__ == "__main__":
    main()
