"""The table of peaks against what devices report of themselves, against arithmetic, and against itself."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.hardware import peaks
from helpers.hardware.peaks import PeakError, achievable, bandwidth, doubts, dtypes, find_gpu, gpu_names, peak
from helpers.training.cluster import ACCELERATORS

RECORDED = Path(__file__).parents[3] / "shared" / "profiles"
REPORTS = {
    "esmm_a10g_sgemm_ladder_5c6231e": "A10G",
    "indexspaces_a40_julia_74de19f": "A40",
    "leimao_rtx3090_gemm_naive": "RTX 3090",
    "mojo_gtx1660ti_tiny_grids": "GTX 1660 Ti",
    "panjd_a100_cutlass_gemm": "A100 PCIe 80GB",
    "speedyscan_rtx3070_scan": "RTX 3070",
}


def metrics_of(name):
    """The metrics of a recorded report's first kernel, as NVIDIA's own reader gives them."""
    reader = pytest.importorskip("ncu_report", reason="needs the optional wheel: pip install ncu-report")
    path = RECORDED / f"{name}.ncu-rep"
    if not path.is_file():
        pytest.skip("needs the recorded reports of shared/profiles")
    action = reader.load_report(str(path)).range_by_idx(0).action_by_idx(0)
    return {key: action.metric_by_name(key).value() for key in action.metric_names()}


@pytest.mark.parametrize("name", REPORTS)
def test_fp32_and_bandwidth_follow_from_what_the_device_reports(name):
    metrics = metrics_of(name)
    told = {key.removeprefix("device__attribute_"): value for key, value in metrics.items()}
    device, clock, memory_clock = told["display_name"], 1e3 * told["clock_rate"], 1e3 * told["memory_clock_rate"]
    capability = told["compute_capability_major"], told["compute_capability_minor"]
    assert find_gpu(device).name == REPORTS[name]
    computed = peaks.fp32_from_attributes(told["multiprocessor_count"], clock, capability)
    assert peak(device, "fp32").value == pytest.approx(computed, rel=0.01)
    moved = peaks.bandwidth_from_attributes(memory_clock, told["global_memory_bus_width"])
    assert bandwidth(device).value == pytest.approx(moved, rel=0.01)


@pytest.mark.parametrize("name", [name for name in REPORTS if not name.startswith(("esmm", "mojo"))])
def test_the_counters_own_peaks_agree_with_the_attributes(name):
    """What a cycle can do at most, which the report holds too, times the highest clock."""
    metrics = metrics_of(name)
    device = metrics["device__attribute_display_name"]
    each_cycle = metrics["derived__sm__sass_thread_inst_executed_op_ffma_pred_on_x2"]
    flop = each_cycle * 1e3 * metrics["device__attribute_clock_rate"]
    assert peak(device, "fp32").value == pytest.approx(flop, rel=0.01)
    moved = metrics["dram__bytes.sum.peak_sustained"] * 1e3 * metrics["device__attribute_memory_clock_rate"]
    assert bandwidth(device).value == pytest.approx(moved, rel=0.01)


def test_a_program_that_prints_its_device_agrees_too():
    path = RECORDED / "olajide_rtx5070_gemm_naive.ncu.csv"
    if not path.is_file():
        pytest.skip("needs the recorded reports of shared/profiles")
    text = path.read_text(encoding="utf-8-sig")
    sms, clock = re.search(r"(\d+) SMs, ([\d.]+) GHz", text).groups()
    told = re.search(r"theoretical: ([\d.]+) TFLOP/s, ([\d.]+) GB/s", text).groups()
    computed = peaks.fp32_from_attributes(int(sms), float(clock) * 1e9, (12, 0))
    assert computed == pytest.approx(float(told[0]) * 1e12, rel=0.001)
    assert bandwidth("RTX 5070").value == float(told[1]) * 1e9
    # The device's clock is above the boost clock of the datasheet: 1.045 times.
    assert computed / peak("RTX 5070", "fp32").value == pytest.approx(2.625 / 2.512, rel=0.01)


# Matrix units: multiply-adds a cycle and SM, SMs and boost clock, from the vendor's whitepapers and device pages.
UNITS = {
    ("A100 SXM 80GB", "bf16", "fp32"): (1024, 108, 1.410e9),
    ("H100 SXM", "bf16", "fp32"): (2048, 132, 1.830e9),
    ("RTX 3090", "fp16", "fp16"): (512, 82, 1.695e9),
    ("RTX 3090", "bf16", "fp32"): (256, 82, 1.695e9),
    ("RTX 4090", "bf16", "fp32"): (256, 128, 2.520e9),
    ("RTX 5090", "bf16", "fp32"): (256, 170, 2.407e9),
    ("V100 SXM2", "fp16", "fp32"): (512, 80, 1.530e9),
    ("T4", "fp16", "fp32"): (512, 40, 1.590e9),
    ("MI300X", "bf16", "fp32"): (1024, 304, 2.100e9),
}


@pytest.mark.parametrize("cell", UNITS)
def test_matrix_peaks_are_dense_products_of_their_units(cell):
    multiply_adds, units, clock = UNITS[cell]
    assert peak(*cell).value == pytest.approx(2 * multiply_adds * units * clock, rel=0.012)


def test_the_training_tracks_accelerators_have_the_same_dense_peak():
    same = {
        "A100": ("A100 SXM 80GB", "A100 40GB"),
        "H100": ("H100 SXM",),
        "H200": ("H200 SXM",),
        "B200": ("B200 SXM",),
    }
    assert set(ACCELERATORS) <= set(same)
    for name, gpu in ACCELERATORS.items():
        for model in same[name]:
            assert gpu.peak == peak(model, "bf16").value
        assert gpu.achievable == pytest.approx(achievable(same[name][0], "bf16").value, rel=0.002)


def test_a_peak_needs_a_dtype():
    with pytest.raises(PeakError, match="needs a dtype") as caught:
        peak("H100 SXM")
    assert "bf16" in caught.value.mend and "fp8" in caught.value.mend


@pytest.mark.parametrize(
    ("arguments", "message", "mend"),
    [
        (("H100 SXM", "float32"), "no dtype 'float32'", "fp32"),
        (("T4", "bf16"), r"no bf16 peak of a T4 \(no bf16\)", "fp16"),
        (("A100 40GB", "fp8"), "no fp8 peak", "int8"),
        (("A40", "fp16", "fp16"), "sums in fp16", "fp32"),
        (("RTX 5080", "bf16"), "'RTX 5080' is not in the table", "RTX 5090"),
        (("H100", "bf16"), "'H100' names several models", "H100 PCIe"),
        (("", "bf16"), "'' is not in the table", "H100 SXM"),
    ],
)
def test_what_the_table_does_not_hold_is_named(arguments, message, mend):
    with pytest.raises(PeakError, match=message) as caught:
        peak(*arguments)
    assert mend in caught.value.mend


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80GB"),
        ("nvidia geforce rtx 3090", "RTX 3090"),
        ("Tesla T4", "T4"),
        ("Apple M1 Max", "M1 Max"),
        ("H200", "H200 SXM"),
    ],
)
def test_drivers_names_are_found(reported, name):
    assert find_gpu(reported).name == name


@given(st.text(max_size=30))
@settings(max_examples=30, deadline=None)
def test_any_name_is_found_or_refused(name):
    try:
        assert find_gpu(name).name in gpu_names()
    except PeakError as error:
        assert error.mend.startswith("use one of")


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (("H100 SXM", "bf16", 1979e12), "2:4 sparsity: dense is 989e12"),
        (("A100 SXM 80GB", "bf16", 156e12), "half of the dense peak"),
        (("A100 SXM 80GB", "bf16", 156e12), "tf32 peak"),
        (("H100 PCIe", "bf16", 989e12), "peak of the H100 SXM"),
        (("RTX 4090", "fp16", 330e12), "fp16 peak with sums in fp16"),
        (("L4", "bf16", 5e12), "no figure of a L4"),
    ],
)
def test_wrong_peaks_of_public_code_are_recognised(claim, words):
    assert any(words in sentence for sentence in doubts(*claim))


@pytest.mark.parametrize("name", gpu_names())
def test_no_row_doubts_itself_and_every_cell_says_where_it_is_from(name):
    row = find_gpu(name)
    for cell in (row.bandwidth, *row.peaks.values(), *row.achievable.values()):
        assert cell.value > 0 and cell.dense and cell.clock == "boost" and cell.source.name
        assert cell.source.date or not cell.source.verified
        assert ("unverified" in str(cell.quantity)) != cell.source.verified
    for dtype in dtypes(name):
        assert doubts(name, dtype, peak(name, dtype).value) == ()
    for (dtype, total), best in row.achievable.items():
        assert 0.5 < best.value / row.peaks[dtype, total].value < 1
        assert achievable(name, dtype) == best


@pytest.mark.parametrize("name", gpu_names())
def test_narrower_types_are_never_slower(name):
    order = [dtype for dtype in ("fp64", "fp32", "tf32", "fp16", "fp8", "fp4") if dtype in dtypes(name)]
    rates = [peak(name, dtype).value for dtype in order]
    assert rates == sorted(rates)


def test_the_file_names_no_source_that_it_does_not_use():
    content = json.loads(peaks.FILE.read_text(encoding="utf-8"))
    rows = content["gpus"]
    used = {cell[-1] for row in rows for cell in (row["bandwidth"], *row["peaks"], *row["achievable"])}
    assert used == set(content["sources"])
    assert len({row["name"] for row in rows}) == len(rows)


def test_an_unknown_capability_is_named():
    with pytest.raises(PeakError, match=r"\(3, 5\)"):
        peaks.fp32_from_attributes(15, 1e9, (3, 5))
