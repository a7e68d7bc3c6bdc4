"""The table over many kernels."""

import pytest
from truths import made

from helpers.profiling.counters.record import KernelRecord
from helpers.profiling.diagnosis import classification_counts, classification_table
from helpers.profiling.diagnosis.table import device_of, short_name

RECORDS = (
    made(name="void f<(int)2>(float *)", duration=1e-3, sm_percent=12, memory_percent=90, dram_percent=90, waves=3),
    made(name="g(int)", duration=1e-3, sm_percent=12),
    made(name="g(int)", duration=1e-9, sm_percent=12, memory_percent=9, waves=3),
)


def test_a_row_holds_the_three_verdicts():
    table = classification_table(RECORDS)
    assert table.headers == ("device", "kernel", "rule of thumb", "NVIDIA's rule", "classifier", "confidence")
    assert [row[1:] for row in table.rows] == [
        ("f", "memory-bound", "memory (DRAM), saturated", "DRAM, saturated", "high"),
        ("g", "unclassified", "metrics missing", "not classifiable: memory_percent was not collected", "low"),
        ("g", "unclassified", "latency", "not classifiable: it ran for 0.00 µs", "low"),
    ]


def test_counts_add_up_for_each_rule():
    rows = classification_counts(RECORDS).rows
    for rule in ("rule of thumb", "NVIDIA's rule", "classifier"):
        assert sum(count for name, _, count in rows if name == rule) == len(RECORDS)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("gemm(int, float *)", "gemm"),
        ("void gmem_coalesce<(int)32>(int, int)", "gmem_coalesce"),
        ("void at::native::<unnamed>::reduce_kernel<(int)512>(T)", "reduce_kernel"),
        ("void at::native::(anonymous namespace)::index<long>(T)", "index"),
        ("unnamed>::gemm_naive_kernel(const float *)", "gemm_naive_kernel"),
        ("copy_blocked[v1, aligned>, Array<long long>)", "copy_blocked"),
        ("void cutlass::Kernel<cutlass::gemm::kernel::Gemm<cutlass::X<int>>>(T1::P)", "Kernel<Gemm>"),
        ("square_kernel_0d1d234", "square_kernel_0d1d234"),
        ("a" * 40, "a" * 35 + "…"),
        ("(", "("),
        ("", ""),
    ],
)
def test_short_names(name, short):
    assert short_name(name) == short


def test_a_device_without_a_name_is_its_capability():
    assert device_of(KernelRecord("k", capability=(12, 0))) == "compute capability 12.0"
    assert (
        device_of(KernelRecord("k")) == "unknown"
        and device_of(KernelRecord("k", "NVIDIA A40", (8, 6))) == "NVIDIA A40"
    )
