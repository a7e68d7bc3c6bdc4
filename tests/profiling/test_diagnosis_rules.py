"""The rule of thumb and NVIDIA's rule at each of their thresholds."""

import math

import pytest
from truths import made

from helpers.profiling.counters.record import KernelRecord
from helpers.profiling.diagnosis import Bottleneck, NvidiaVerdict, nvidia_rule, nvidia_said, rule_of_thumb


@pytest.mark.parametrize(
    ("sm", "dram", "verdict"),
    [
        (24.9, 75.1, "memory-bound"),
        (25.0, 75.1, "unclassified"),
        (24.9, 75.0, "unclassified"),
        (75.1, 49.9, "compute-bound"),
        (75.0, 49.9, "unclassified"),
        (75.1, 50.0, "unclassified"),
        (math.nan, 90, "unclassified"),
        (10, math.nan, "unclassified"),
    ],
)
def test_the_rule_of_thumb_turns_at_its_thresholds(sm, dram, verdict):
    assert rule_of_thumb(made(sm_percent=sm, dram_percent=dram)) == verdict


def test_the_rule_of_thumb_needs_both_numbers():
    assert rule_of_thumb(made(sm_percent=1)) == rule_of_thumb(made(dram_percent=99)) == "unclassified"


@pytest.mark.parametrize(
    ("sm", "memory", "waves", "verdict"),
    [
        (80.0, 10, 2, "compute, saturated"),
        (10, 80.0, 2, "memory, saturated"),
        (90, 90, 2, "compute, saturated"),
        (90, 90.01, 2, "memory, saturated"),
        (79.99, 10, 2, "compute"),
        (10, 79.99, 2, "memory"),
        (79, 69, 2, "compute"),
        (79, 69.01, 2, "balanced"),
        (69.01, 79, 2, "balanced"),
        (60.0, 10, 2, "compute"),
        (59.99, 10, 2, "latency"),
        (59.99, 59.99, 1.0, "latency"),
        (59.99, 59.99, 0.99, "small grid"),
        (60.0, 59.99, 0.5, "balanced"),
        (95, 10, 0.5, "compute, saturated"),
    ],
)
def test_nvidias_rule_turns_at_its_thresholds(sm, memory, waves, verdict):
    assert str(nvidia_rule(made(sm_percent=sm, memory_percent=memory, waves=waves))) == verdict


def test_nvidias_rule_is_silent_without_its_metrics():
    assert nvidia_rule(made(sm_percent=10, memory_percent=10)) is None
    assert nvidia_rule(made(sm_percent=10, waves=3)) is None
    assert nvidia_rule(made(sm_percent=math.nan, memory_percent=10, waves=3)) is None
    assert str(nvidia_rule(made(sm_percent=85, memory_percent=10))) == "compute, saturated"


def test_the_unit_is_the_largest_part_of_the_breakdown():
    total = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
    parts = {"lts__t_sectors.avg.x": 91.0, "dram__cycles_active.avg.x": 60.0, "l1tex__lsuin_requests.avg.x": 20.0}
    record = KernelRecord(
        "k",
        metrics={total: 91.0, "sm__throughput.avg.pct_of_peak_sustained_elapsed": 5.0} | parts,
        breakdowns={total: tuple(parts)},
    )
    assert nvidia_rule(record) == NvidiaVerdict(Bottleneck.MEMORY_SATURATED, "L2")


def test_without_a_breakdown_the_unit_is_the_level_that_equals_the_total():
    record = made(sm_percent=5, memory_percent=70, waves=3, dram_percent=50, l2_percent=70, l1_percent=69)
    assert str(nvidia_rule(record)) == "memory (L2)"
    assert str(nvidia_rule(made(sm_percent=5, memory_percent=70, waves=3, dram_percent=50))) == "memory"


@pytest.mark.parametrize(
    ("message", "verdict"),
    [
        ("This kernel exhibits low compute throughput and memory bandwidth utilization", "latency"),
        ("This kernel grid is too small to fill the available resources on this device", "small grid"),
        ("Compute is more heavily utilized than Memory: Look at", "compute"),
        ("Memory is more heavily utilized than Compute: Look at X to identify the L2 bottleneck.", "memory (L2)"),
        ("Memory is more\nheavily utilized   than Compute:", "memory"),
        ("Compute and Memory are well-balanced: To reduce runtime", "balanced"),
        (
            "The kernel is utilizing greater than 80.0% of the available compute or memory performance. "
            "Start by analyzing DRAM in the Memory Workload Analysis section.",
            "memory (DRAM), saturated",
        ),
        (
            "The kernel is utilizing greater than 80.0% of the available compute or memory performance. "
            "Start by analyzing workloads in the Compute Workload Analysis section.",
            "compute, saturated",
        ),
    ],
)
def test_messages_are_recognised(message, verdict):
    rules = (("Occupancy", "This kernel's theoretical occupancy"), ("SOLBottleneck", message))
    assert str(nvidia_said(KernelRecord("k", rules=rules))) == verdict


def test_a_report_without_the_rule_said_nothing():
    assert nvidia_said(KernelRecord("k", rules=(("SOLBottleneck", "Rule returned an error"),))) is None
