"""What the course needs from a report, and how each generation of GPU and of Nsight Compute spells it.

Spellings are in order of preference: `KernelRecord.get` takes the first finite one. Two spellings of one need
stand for the same quantity in the same unit; what differs by a factor is another need. Two need a word of care:
l1_percent prefers the share of *active* cycles, as the tool's own page does, and sm_elapsed_cycles falls back to
the largest unit's count. The names are those of reports by ncu 2020.3 to 2026.2 and of NVIDIA's section files.
"""

from helpers.profiling.counters.record import CounterError

PERCENT = "avg.pct_of_peak_sustained_elapsed"
ACTIVE = "avg.pct_of_peak_sustained_active"

STALLS = (
    "barrier",
    "branch_resolving",
    "dispatch_stall",
    "drain",
    "gmma",
    "imc_miss",
    "lg_throttle",
    "long_scoreboard",
    "math_pipe_throttle",
    "membar",
    "mio_throttle",
    "misc",
    "no_instruction",
    "not_selected",
    "selected",
    "short_scoreboard",
    "sleeping",
    "tex_throttle",
    "wait",
)

THREAD_INSTRUCTIONS = "smsp__sass_thread_inst_executed_op"


def _per_cycle(operation: str) -> tuple[str, ...]:
    return (f"{THREAD_INSTRUCTIONS}_{operation}_pred_on.sum.per_cycle_elapsed",)


NEEDS: dict[str, tuple[str, ...]] = {
    # Speed of light. sm_percent is the busiest of the SM's units (issue, LSU, pipes): not a share of peak FLOP/s.
    "sm_percent": (f"sm__throughput.{PERCENT}",),
    "memory_percent": (f"gpu__compute_memory_throughput.{PERCENT}",),
    "dram_percent": (f"gpu__dram_throughput.{PERCENT}", f"dram__throughput.{PERCENT}"),
    "l1_percent": (f"l1tex__throughput.{ACTIVE}", f"l1tex__throughput.{PERCENT}"),
    "l2_percent": (f"lts__throughput.{PERCENT}",),
    # Time and clocks: s, Hz and cycles.
    "duration": ("gpu__time_duration.sum", "gpu__time_duration_measured_user.sum", "gpu__time_duration.avg"),
    "sm_clock": (
        "sm__cycles_elapsed.avg.per_second",
        "smsp__cycles_elapsed.avg.per_second",
        "gpc__cycles_elapsed.avg.per_second",
    ),
    "dram_clock": ("dram__cycles_elapsed.avg.per_second",),
    "sm_active_cycles": ("sm__cycles_active.avg", "smsp__cycles_active.avg"),
    "sm_elapsed_cycles": ("sm__cycles_elapsed.avg", "sm__cycles_elapsed.max", "gpc__cycles_elapsed.max"),
    # Pipes, percent of their own peak while the kernel ran.
    "tensor_percent": (
        f"sm__pipe_tensor_cycles_active.{PERCENT}",
        f"sm__pipe_tc_cycles_active.{PERCENT}",
        f"sm__pipe_tensor_subpipe_hmma_cycles_active.{PERCENT}",
        f"sm__pipe_tensor_op_hmma_cycles_active.{PERCENT}",
    ),
    "fma_percent": (f"sm__pipe_fma_cycles_active.{PERCENT}", f"sm__inst_executed_pipe_fma.{PERCENT}"),
    "alu_percent": (f"sm__pipe_alu_cycles_active.{PERCENT}", f"sm__inst_executed_pipe_alu.{PERCENT}"),
    "fp64_percent": (f"sm__pipe_fp64_cycles_active.{PERCENT}", f"sm__inst_executed_pipe_fp64.{PERCENT}"),
    "fp16_percent": (f"sm__inst_executed_pipe_fp16.{PERCENT}",),
    "xu_percent": (f"sm__inst_executed_pipe_xu.{PERCENT}",),
    "lsu_percent": (f"sm__inst_executed_pipe_lsu.{PERCENT}",),
    "issue_percent": (f"sm__issue_active.{PERCENT}", f"sm__inst_issued.{PERCENT}"),
    # Work: thread instructions per cycle of the whole GPU, and what they can be at most.
    "fadd_per_cycle": _per_cycle("fadd"),
    "fmul_per_cycle": _per_cycle("fmul"),
    "ffma_per_cycle": _per_cycle("ffma"),
    "ffma_flop_per_cycle": ("derived__smsp__sass_thread_inst_executed_op_ffma_pred_on_x2",),
    "dadd_per_cycle": _per_cycle("dadd"),
    "dmul_per_cycle": _per_cycle("dmul"),
    "dfma_per_cycle": _per_cycle("dfma"),
    "dfma_flop_per_cycle": ("derived__smsp__sass_thread_inst_executed_op_dfma_pred_on_x2",),
    "fp32_peak_per_cycle": ("derived__sm__sass_thread_inst_executed_op_ffma_pred_on_x2",),
    "fp64_peak_per_cycle": ("derived__sm__sass_thread_inst_executed_op_dfma_pred_on_x2",),
    "instructions": ("smsp__inst_executed.sum", "sm__inst_executed.sum"),
    # Traffic: B, B/s, and B per cycle of DRAM.
    "dram_bytes": ("dram__bytes.sum",),
    "dram_read_bytes": ("dram__bytes_read.sum", "dram__bytes_op_read.sum"),
    "dram_write_bytes": ("dram__bytes_write.sum", "dram__bytes_op_write.sum"),
    "dram_bytes_per_second": ("dram__bytes.sum.per_second",),
    "dram_peak_bytes_per_cycle": ("dram__bytes.sum.peak_sustained",),
    "l2_bytes": ("lts__t_bytes.sum",),
    "l2_sectors": ("lts__t_sectors.sum",),
    "l1_bytes": ("l1tex__t_bytes.sum",),
    "l2_to_l1_bytes": ("l1tex__m_xbar2l1tex_read_bytes.sum",),
    "l1_to_l2_bytes": ("l1tex__m_l1tex2xbar_write_bytes.sum",),
    "global_load_sectors": ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",),
    "global_load_requests": ("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",),
    "global_store_sectors": ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",),
    "global_store_requests": ("l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",),
    "shared_bank_conflicts": (
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
        "l1tex__data_bank_conflicts_pipe_lsu.sum",
    ),
    "l1_hit_percent": ("l1tex__t_sector_hit_rate.pct",),
    "l2_hit_percent": ("lts__t_sector_hit_rate.pct",),
    # Launch and occupancy.
    "occupancy_achieved": (f"sm__warps_active.{ACTIVE}",),
    "occupancy_theoretical": ("sm__maximum_warps_per_active_cycle_pct",),
    "occupancy_limit_registers": ("launch__occupancy_limit_registers",),
    "occupancy_limit_shared": ("launch__occupancy_limit_shared_mem",),
    "occupancy_limit_warps": ("launch__occupancy_limit_warps",),
    "occupancy_limit_blocks": ("launch__occupancy_limit_blocks",),
    "waves": ("launch__waves_per_multiprocessor",),
    "registers_per_thread": ("launch__registers_per_thread",),
    "shared_bytes_per_block": ("launch__shared_mem_per_block",),
    "blocks": ("launch__grid_size",),
    "threads_per_block": ("launch__block_size",),
    # Schedulers: per cycle in which the scheduler is active.
    "warps_eligible": ("smsp__warps_eligible.avg.per_cycle_active",),
    "warps_active": ("smsp__warps_active.avg.per_cycle_active",),
    "issue_active": ("smsp__issue_active.avg.per_cycle_active",),
    "warp_latency": ("smsp__average_warp_latency_per_inst_issued.ratio",),
    # The device. The attributes of clocks are in kHz in the tool, in Hz here; the bus is in bits.
    "attribute_clock_rate": ("device__attribute_clock_rate", "device__attribute_max_gpu_frequency_khz"),
    "attribute_memory_clock_rate": (
        "device__attribute_memory_clock_rate",
        "device__attribute_max_mem_frequency_khz",
    ),
    "attribute_bus_width": ("device__attribute_global_memory_bus_width", "device__attribute_fb_bus_width"),
    "sm_count": ("device__attribute_multiprocessor_count", "launch__sm_count"),
    "l2_cache_bytes": ("device__attribute_l2_cache_size",),
    **{
        f"stall_{reason}": (f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio",)
        for reason in STALLS
    },
}


def spellings(need: str) -> tuple[str, ...]:
    """The metric names that answer a need, the preferred one first. Raises `CounterError` for an unknown need."""
    if need not in NEEDS:
        import difflib

        close = difflib.get_close_matches(need, NEEDS, n=3) or sorted(NEEDS)[:3]
        raise CounterError(f"no need is called {need!r}", mend=f"did you mean {', '.join(close)}?")
    return NEEDS[need]


_SPEED_OF_LIGHT = {
    "Memory Throughput": f"gpu__compute_memory_throughput.{PERCENT}",
    "DRAM Throughput": f"gpu__dram_throughput.{PERCENT}",
    "L1/TEX Cache Throughput": f"l1tex__throughput.{ACTIVE}",
    "L2 Cache Throughput": f"lts__throughput.{PERCENT}",
    "Compute (SM) Throughput": f"sm__throughput.{PERCENT}",
    "Duration": "gpu__time_duration.sum",
    "Elapsed Cycles": "gpc__cycles_elapsed.max",
    "SM Active Cycles": "sm__cycles_active.avg",
    "SM Frequency": "gpc__cycles_elapsed.avg.per_second",
    "DRAM Frequency": "dram__cycles_elapsed.avg.per_second",
    "SOL SM": f"sm__throughput.{PERCENT}",
    "SOL Memory": f"gpu__compute_memory_throughput.{PERCENT}",
    "SOL DRAM": f"gpu__dram_throughput.{PERCENT}",
    "SOL L1/TEX Cache": f"l1tex__throughput.{ACTIVE}",
    "SOL L2 Cache": f"lts__throughput.{PERCENT}",
}

LABELS: dict[str, dict[str, str]] = {
    "GPU Speed Of Light Throughput": _SPEED_OF_LIGHT,
    "GPU Speed Of Light": _SPEED_OF_LIGHT,
    "Compute Workload Analysis": {
        "Executed Ipc Active": "sm__inst_executed.avg.per_cycle_active",
        "Executed Ipc Elapsed": "sm__inst_executed.avg.per_cycle_elapsed",
        "Issue Slots Busy": f"sm__inst_issued.{ACTIVE}",
        "Issued Ipc Active": "sm__inst_issued.avg.per_cycle_active",
        "SM Busy": f"sm__instruction_throughput.{ACTIVE}",
    },
    "Memory Workload Analysis": {
        "Memory Throughput": "dram__bytes.sum.per_second",
        "Max Bandwidth": f"gpu__compute_memory_request_throughput.{PERCENT}",
        "Mem Busy": f"gpu__compute_memory_access_throughput.{PERCENT}",
        "Mem Pipes Busy": f"sm__memory_throughput.{PERCENT}",
        "L1/TEX Hit Rate": "l1tex__t_sector_hit_rate.pct",
        "L2 Hit Rate": "lts__t_sector_hit_rate.pct",
        "L2 Compression Success Rate": "lts__average_gcomp_input_sector_success_rate.pct",
        "L2 Compression Ratio": "lts__average_gcomp_output_sector_compression_achieved_rate.ratio",
    },
    "Occupancy": {
        "Achieved Occupancy": f"sm__warps_active.{ACTIVE}",
        "Achieved Active Warps Per SM": "sm__warps_active.avg.per_cycle_active",
        "Theoretical Occupancy": "sm__maximum_warps_per_active_cycle_pct",
        "Theoretical Active Warps per SM": "sm__maximum_warps_avg_per_active_cycle",
        "Block Limit Registers": "launch__occupancy_limit_registers",
        "Block Limit SM": "launch__occupancy_limit_blocks",
        "Block Limit Shared Mem": "launch__occupancy_limit_shared_mem",
        "Block Limit Warps": "launch__occupancy_limit_warps",
    },
    "Launch Statistics": {
        "# SMs": "launch__sm_count",
        "Block Size": "launch__block_size",
        "Grid Size": "launch__grid_size",
        "Registers Per Thread": "launch__registers_per_thread",
        "Driver Shared Memory Per Block": "launch__shared_mem_per_block_driver",
        "Dynamic Shared Memory Per Block": "launch__shared_mem_per_block_dynamic",
        "Static Shared Memory Per Block": "launch__shared_mem_per_block_static",
        "Shared Memory Configuration Size": "launch__shared_mem_config_size",
        "Threads": "launch__thread_count",
        "Waves Per SM": "launch__waves_per_multiprocessor",
    },
    "Scheduler Statistics": {
        "Active Warps Per Scheduler": "smsp__warps_active.avg.per_cycle_active",
        "Eligible Warps Per Scheduler": "smsp__warps_eligible.avg.per_cycle_active",
        "Issued Warp Per Scheduler": "smsp__issue_active.avg.per_cycle_active",
        "No Eligible": f"smsp__issue_inst0.{ACTIVE}",
        "One or More Eligible": f"smsp__issue_active.{ACTIVE}",
    },
    "Warp State Statistics": {
        "Avg. Active Threads Per Warp": "smsp__thread_inst_executed_per_inst_executed.ratio",
        "Avg. Not Predicated Off Threads Per Warp": "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio",
        "Warp Cycles Per Executed Instruction": "smsp__average_warps_active_per_inst_executed.ratio",
        "Warp Cycles Per Issued Instruction": "smsp__average_warp_latency_per_inst_issued.ratio",
    },
    "Instruction Statistics": {
        "Avg. Executed Instructions Per Scheduler": "smsp__inst_executed.avg",
        "Avg. Issued Instructions Per Scheduler": "smsp__inst_issued.avg",
        "Executed Instructions": "smsp__inst_executed.sum",
        "Issued Instructions": "smsp__inst_issued.sum",
    },
}


def metric_name(section: str, label: str) -> str:
    """The metric behind a label of the details page or the text page, by its section: labels repeat.

    A metric's own name comes back as it is; a label that is not known here as `Section: Label`.
    """
    return LABELS.get(section, {}).get(label) or (label if "__" in label else f"{section}: {label}")


UNITS = {"duration": "s", "sm_clock": "Hz", "dram_clock": "Hz", "dram_bytes_per_second": "B/s"}
UNITS |= {"attribute_clock_rate": "Hz", "attribute_memory_clock_rate": "Hz", "attribute_bus_width": "bit"}


def unit(need: str) -> str:
    """The base unit of a need: s, Hz, B/s, B, %, or "" for a count or a ratio. `CounterError` for an unknown one."""
    spellings(need)
    if need.endswith("_percent") or need in ("occupancy_achieved", "occupancy_theoretical"):
        return "%"
    is_bytes = need.endswith("_bytes") or need == "shared_bytes_per_block"
    return UNITS.get(need, "B" if is_bytes else "")
