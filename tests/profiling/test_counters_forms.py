"""Every form of a report: the same numbers whichever way they come, and a named error for what is not whole."""

import csv
import gzip
import math
import re

import pytest
from counters_kit import FIXED, RECORDED, long_form, recorded, row, table, wide_form
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from helpers.profiling.counters.aliases import LABELS, NEEDS
from helpers.profiling.counters.reader import read_kernels
from helpers.profiling.counters.record import CounterError, KernelRecord

SM, DRAM = (
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
)
KERNELS = {
    "saxpy(float, const float *, float *, int)": {
        "gpu__time_duration.sum": ("ns", "292,928"),
        SM: ("%", "22.30"),
        "dram__bytes_read.sum": ("Mbyte", "134.22"),
        "dram__cycles_elapsed.avg.per_second": ("Ghz", "13.80"),
        "lts__t_sector_hit_rate.pct": ("%", "100.39"),
    },
    'void gemm<"a", 1>(float *)': {
        "gpu__time_duration.sum": ("ns", "9,589,248"),
        SM: ("%", "n/a"),
        "dram__bytes_read.sum": ("Mbyte", "54.21"),
        "dram__cycles_elapsed.avg.per_second": ("Ghz", "13.80"),
        "lts__t_sector_hit_rate.pct": ("%", "33.26"),
    },
}
LOG = "==PROF== Connected to process 77\nwrote 7 rows\nloss, time\n"
TEXT = """==PROF== Profiling "saxpy" - 0: 0%....50%....100% - 10 passes
==PROF== Disconnected from process 77
[77] python3@127.0.0.1
  saxpy(float, const float *, float *, int) (64, 1, 1)x(256, 1, 1), Context 1, Stream 7, Device 0, CC 9.0
    Section: GPU Speed Of Light Throughput
    ----------------------- ----------- ------------
    Metric Name             Metric Unit Metric Value
    ----------------------- ----------- ------------
    DRAM Frequency                  Ghz        13.80
    Duration                         us       292.93
    Compute (SM) Throughput           %        22.30
    ----------------------- ----------- ------------

    OPT   Memory is more heavily utilized than Compute: look at the
          Memory Workload Analysis section.

    Section: Memory Workload Analysis
    ------------------ ----------- ------------
    Metric Name        Metric Unit Metric Value
    ------------------ ----------- ------------
    Memory Throughput      Gbyte/s       607.12
    L2 Hit Rate                  %       100.39
    ------------------ ----------- ------------
"""
OLD_TEXT = """  saxpy(float, float*), 2021-Mar-04 10:11:12, Context 1, Stream 7
    Section: GPU Speed Of Light
    ---------------------------------------- --------------- ------------------------------
    SOL SM                                                 %                          22.30
    Duration                                         usecond                         292.93
    ---------------------------------------- --------------- ------------------------------
    Section: Launch Statistics
    ---------------------------------------- --------------- ------------------------------
    Block Size                                                                          256
    Function Cache Configuration                                    cudaFuncCachePreferNone
    ---------------------------------------- --------------- ------------------------------
"""
PROFILED = '==PROF== Profiling "a" - 0: 0%\n'


@pytest.fixture
def read(tmp_path):
    """Read a report from its text or bytes."""

    def from_content(content, name="report.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_kernels(path)

    return from_content


def test_the_long_and_the_wide_form_are_the_same_records(read):
    def bare(kernels):
        return repr([(k.name, k.grid, k.block, k.capability, dict(k.metrics)) for k in kernels])

    long, wide = read(long_form(KERNELS)), read(wide_form(KERNELS))
    assert bare(long) == bare(wide)
    first, second = long
    assert (first.grid, first.block, first.capability) == ((64, 1, 1), (256, 1, 1), (9, 0))
    assert first.get("duration") == 292928e-9 and first.get("dram_read_bytes") == 134.22e6
    assert first.get("dram_clock") == 13.8e9 and first.get("l2_hit_percent") == 100.39
    assert [kernel.name for kernel in long] == list(KERNELS)
    assert second.failed == (SM,) and math.isnan(second.get("sm_percent")) and second.get("dram_percent") is None


@pytest.mark.parametrize("form", [long_form, wide_form])
@pytest.mark.parametrize("before", ["", LOG, "\ufeff", "\ufeff" + LOG, '"quoted" program output, "ID" and all\n'])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_stands_before_the_table_does_not_matter(read, form, before, end):
    kernels = read((before + form(KERNELS)).replace("\n", end).encode())
    assert [len(kernel.metrics) for kernel in kernels] == [5, 5]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_the_encodings_of_a_windows_shell_are_read(read, encoding):
    assert [kernel.name for kernel in read(long_form(KERNELS).encode(encoding))] == list(KERNELS)


def test_what_is_printed_after_or_between_rows_is_left_out(read):
    lines = long_form(KERNELS).splitlines()
    noisy = "\n".join([*lines[:4], "==PROF== a line", "step 3, loss 2.5", *lines[4:], "done", ""])
    assert [len(kernel.metrics) for kernel in read(noisy)] == [5, 5]


def test_several_tables_are_several_runs(read):
    kernels = read(LOG + long_form(KERNELS) + LOG + wide_form(KERNELS))
    assert [kernel.name for kernel in kernels] == 2 * list(KERNELS)


def test_a_metric_that_a_kernel_lacks_is_absent_and_texts_are_no_metrics(read):
    metrics = {
        "duration": {"gpu__time_duration.sum": ("ns", "5")},
        "both": KERNELS["saxpy(float, const float *, float *, int)"],
    }
    metrics["both"] = metrics["both"] | {"device__attribute_display_name": ("", "NVIDIA H200")}
    first, second = read(wide_form(metrics))
    assert set(first.metrics) == {"gpu__time_duration.sum"} and first.device == ""
    assert second.device == "NVIDIA H200" and "device__attribute_display_name" not in second.metrics


def test_a_breakdown_is_a_list_of_its_parts(read):
    parts = {"a__x.avg": ("%", "12"), "b__y.avg": ("%", "70"), "c__z.avg": ("%", "n/a")}
    metrics = {SM: ("%", "70"), f"breakdown:{SM}": ("", "a__x.avg,b__y.avg,c__z.avg,d__absent.avg"), **parts}
    (kernel,) = read(wide_form({"k": metrics}))
    assert kernel.breakdown("sm_percent") == (("b__y.avg", 70.0), ("a__x.avg", 12.0))
    assert kernel.breakdown("memory_percent") == ()


def test_the_details_page_keeps_rules_and_tells_labels_apart(read):
    section = [*FIXED, "Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name", "Rule Type"]
    section += ["Rule Description", "Estimated Speedup Type", "Estimated Speedup"]
    page = table(
        section,
        [*row(), "GPU Speed Of Light Throughput", "Memory Throughput", "%", "61.84", ""],
        [*row(), "Memory Workload Analysis", "Memory Throughput", "Gbyte/second", "196.46", ""],
        [*row(), "PM Sampling", "Dropped Samples", "sample", "0", ""],
        [
            *row(),
            "SpeedOfLight",
            "",
            "",
            "",
            "SOLBottleneck",
            "OPT",
            'Says "more",\nover two lines.',
            "local",
            "38.16",
        ],
    )
    (kernel,) = read(page)
    assert kernel.get("memory_percent") == 61.84 and kernel.get("dram_bytes_per_second") == 196.46e9
    assert kernel.metrics["PM Sampling: Dropped Samples"] == 0
    assert kernel.rules == (("SOLBottleneck", 'Says "more",\nover two lines. Estimated speedup: 38.16 % (local).'),)


def test_the_text_page_is_read(read):
    (kernel,) = read(TEXT, "page.txt")
    assert kernel.name == "saxpy(float, const float *, float *, int)" and kernel.grid == (64, 1, 1)
    assert kernel.get("duration") == 292.93e-6 and kernel.get("dram_clock") == 13.8e9
    assert kernel.get("dram_bytes_per_second") == 607.12e9 and kernel.get("memory_percent") is None
    expected = "Memory is more heavily utilized than Compute: look at the Memory Workload Analysis section."
    assert kernel.rules == (("GPU Speed Of Light Throughput", expected),)


def test_the_text_page_of_2021_is_read(read):
    (kernel,) = read(OLD_TEXT, "page.txt")
    assert (kernel.name, kernel.source.date) == ("saxpy(float, float*)", "2021-03-04")
    assert kernel.get("sm_percent") == 22.3 and kernel.get("duration") == 292.93e-6
    assert kernel.get("threads_per_block") == 256


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (gzip.compress(long_form(KERNELS).encode()), r"compressed \(gzip\)"),
        (b"PK\x03\x04 and more", r"compressed \(zip\)"),
        (b"SQLite format 3\0", "database"),
        (b'{"traceEvents": []}', "is JSON"),
        (b"\x7fELF\0\0", "no report of Nsight Compute"),
        (b"kernel,variant\nsaxpy,base\n", "no report of Nsight Compute"),
        (b"NVR\0", "cut or damaged"),
        (LOG.encode(), "only ncu's log is here"),
        (LOG.encode() + b"==WARNING== No kernels were profiled.\n", "No kernels were profiled"),
        (b"==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n", "does not allow counters"),
        (b"==ERROR== Cuda driver is not compatible with Nsight Compute\n", "does not fit the driver"),
        (
            table([*FIXED, "Section Name", "Metric Name", "Metric Unit", "Metric Value"]).encode(),
            "no kernel was profiled",
        ),
        (table([*FIXED, "x.sum"], [*row(), "3"]).encode(), "no row of units"),
    ],
)
def test_what_is_no_report_is_told_apart(read, content, message):
    with pytest.raises(CounterError, match=message) as caught:
        read(content, "report")
    assert caught.value.where and caught.value.mend


def test_an_absent_file_and_a_folder_are_named(tmp_path):
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(CounterError, match="cannot be read") as caught:
            read_kernels(path)
        assert str(path) in caught.value.where


def damage(old, new, form=long_form):
    return form(KERNELS).replace(old, new, 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (damage('"n/a"', '"1.2.3"'), "no number"),
        (damage('"ns"', '"Mfoo"'), "unit 'Mfoo' is not known"),
        (damage('"1","77"', '"0","77"'), "changes its name or launch"),
        (damage("(64, 1, 1)", "(64, 1, 2)"), "changes its name or launch"),
        (damage('"0","77"', '0","77"'), "is no row of the table"),
        (long_form(KERNELS)[:-30], "does not end|cells"),
        (damage("Metric Value", "Metric Name"), "lacks a column"),
        (damage('"1","77"', '"0","77"', wide_form), "changes its name or launch"),
        (damage('"22.30",', "", wide_form), "cells"),
        (damage('"Mbyte",', "", wide_form), "cells"),
        (PROFILED + PROFILED.replace("- 0", "- 2") + long_form(KERNELS), "3 kernels"),
        (TEXT.replace("\n    ------------------ ----------- ------------\n", "\n", 2), "is no row|does not end"),
        (TEXT.replace("607.12", "6o7.12"), "no number"),
        (TEXT.replace("- 0: 0%", "- 1: 0%").replace("==PROF== Dis", PROFILED + "==PROF== Dis"), "2 kernels"),
    ],
)
def test_damage_is_named(read, content, message):
    with pytest.raises(CounterError, match=message) as caught:
        read(content)
    assert caught.value.where and caught.value.mend


@pytest.mark.parametrize("form", [long_form, wide_form])
def test_a_table_cut_anywhere_is_whole_or_named(read, form):
    whole = form(KERNELS)
    kernels = repr(read(whole))
    for cut in range(len(whole)):
        try:
            found = read(whole[:cut])
        except CounterError as error:
            assert error.where and error.mend
            continue
        assert repr(found) == kernels or "\n" in whole[cut - 1 : cut + 1], cut  # between two rows


def test_a_page_cut_anywhere_is_whole_or_named(read):
    kernels = repr(read(TEXT))
    shorter = []
    for cut in range(len(TEXT)):
        try:
            found = repr(read(TEXT[:cut]))
        except CounterError as error:
            assert error.where and error.mend
            continue
        if found != kernels:
            shorter.append(TEXT[:cut].splitlines()[-1])
    assert all(re.match(r"\s*(-+ -+ -+|OPT|Memory Work|Section|S.*|)", line) for line in shorter)


def test_recorded_csv_agrees_with_the_csv_module():
    for name, device in (("olajide_rtx5070_gemm_naive.ncu.csv", 2048), ("olajide_rtx5070_saxpy.ncu.csv", None)):
        path = recorded(name)
        lines = path.read_text(encoding="utf-8-sig").splitlines()
        start = next(index for index, line in enumerate(lines) if line.startswith('"ID"'))
        rows = list(csv.DictReader(lines[start:]))
        (kernel,) = read_kernels(path)
        assert len(kernel.metrics) == len(rows) == 12 and kernel.capability == (12, 0)
        for entry in rows:
            value = float(entry["Metric Value"].replace(",", ""))
            scale = {"ns": 1e-9}.get(entry["Metric Unit"], 1)
            assert kernel.metrics[entry["Metric Name"]] == pytest.approx(value * scale, rel=1e-15)
        if device:  # each of 2048² threads loads a row and a column: one request a warp, 32 lanes
            assert kernel.require("global_load_requests") == 2 * device**3 / 32 * 1.0
    saxpy = kernel  # reads x and y, 4 bytes each, of 65 536 blocks of 256
    assert saxpy.require("dram_read_bytes") == pytest.approx(65536 * 256 * 8, rel=0.01)
    assert saxpy.require("global_load_requests") == 65536 * 256 * 2 / 32


def test_the_recorded_details_page_conserves_bytes_and_cycles():
    (kernel,) = read_kernels(recorded("nsightful_t4_copy_blocked.details.csv"))
    rate, duration = kernel.require("dram_bytes_per_second"), kernel.require("duration")
    assert kernel.require("sm_clock") * duration == pytest.approx(kernel.metrics["gpc__cycles_elapsed.max"], rel=1e-3)
    bus = 256 / 8 * 2 * kernel.require("dram_clock")  # T4: 256 bits, two transfers a cycle of this counter's clock
    assert 100 * rate / bus == pytest.approx(kernel.require("dram_percent"), rel=0.001)
    assert [name for name, _ in kernel.rules][:2] == ["SOLBottleneck", "SOLFPRoofline"]
    assert sum("Estimated speedup" in text for _, text in kernel.rules) >= 3
    assert kernel.require("occupancy_limit_warps") * 8 == kernel.metrics["sm__maximum_warps_avg_per_active_cycle"]


def test_the_recorded_text_page_has_all_seventeen_kernels():
    path = recorded("gpumode_a100_square_ncu.txt")
    kernels = read_kernels(path)
    text = path.read_text()
    assert len(kernels) == text.count("==PROF== Profiling") == 17
    durations = [float(found) * 1e-6 for found in re.findall(r"Duration +usecond +([\d.]+)", text)]
    assert [kernel.require("duration") for kernel in kernels] == pytest.approx(durations)
    clocks = re.findall(r"SM Frequency +cycle/([nu])second +([\d.]+)", text)
    scale = {"n": 1e9, "u": 1e6}
    assert [kernel.require("sm_clock") for kernel in kernels] == pytest.approx(
        [float(v) * scale[u] for u, v in clocks]
    )
    for kernel in kernels:
        blocks = math.prod(kernel.grid)
        assert blocks == kernel.require("blocks") and math.prod(kernel.block) == kernel.require("threads_per_block")
        limits = [kernel.require(f"occupancy_limit_{part}") for part in ("registers", "shared", "warps", "blocks")]
        assert blocks / min(limits) / 108 == pytest.approx(kernel.require("waves"), abs=0.006)  # an A100 has 108 SMs
        cycles = kernel.require("sm_clock") * kernel.require("duration")
        assert cycles == pytest.approx(kernel.metrics["gpc__cycles_elapsed.max"], rel=0.02)


def test_the_other_files_of_the_folder_are_refused():
    if not RECORDED.is_dir():
        pytest.skip("needs the recorded reports of shared/profiles")
    for name in ("SOURCES.md", "olajide_rtx5070_timing.csv", "hta_dist_rank0.pt.trace.json.gz"):
        with pytest.raises(CounterError):
            read_kernels(RECORDED / name)


def test_needs_are_unambiguous_and_labels_lead_to_them():
    assert all(names and len(set(names)) == len(names) for names in NEEDS.values())
    owners = {}
    for need, names in NEEDS.items():
        for name in names:
            assert owners.setdefault(name, need) == need, f"{name} answers {need} and {owners[name]}"
    reached = {name for labels in LABELS.values() for name in labels.values()}
    for need in ("duration", "sm_percent", "dram_percent", "occupancy_achieved", "waves", "warps_eligible"):
        assert reached & set(NEEDS[need]), need


def test_asking_for_what_is_not_there_says_what_to_collect():
    record = KernelRecord("k", metrics={"gpu__time_duration.sum": 1e-3, SM: math.nan, DRAM: math.nan})
    other = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
    assert KernelRecord("k", metrics={DRAM: math.nan, other: 4.0}).get("dram_percent") == 4.0
    assert record.get("duration") == 1e-3 and record.get("waves") is None
    with pytest.raises(CounterError, match="waves was not collected") as caught:
        record.require("waves")
    assert "launch__waves_per_multiprocessor" in caught.value.mend
    with pytest.raises(CounterError, match="could not be collected: NaN"):
        record.require("sm_percent")
    with pytest.raises(CounterError, match="no need is called 'dram_pct'") as caught:
        record.get("dram_pct")
    assert "dram_percent" in caught.value.mend


def mutated(whole, edits):
    data = bytearray(whole)
    for place, kind, value in edits:
        at = place % max(1, len(data))
        if kind == 0:
            data[at : at + 1] = bytes([value])
        elif kind == 1:
            del data[at : at + value]
        else:
            data[at:at] = data[at // 2 : at // 2 + value]
    return bytes(data)


EDITS = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 2), st.integers(0, 255)), min_size=1, max_size=4)
WHOLE = [long_form(KERNELS).encode(), wide_form(KERNELS).encode(), TEXT.encode(), OLD_TEXT.encode()]


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(range(len(WHOLE))), EDITS)
@example(0, [(0, 1, 1)])
def test_a_damaged_table_or_page_is_records_or_a_named_error(read, which, edits):
    sound(read, mutated(WHOLE[which], edits))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary(max_size=400), st.sampled_from([b"", LOG.encode(), WHOLE[0][:200], WHOLE[0][:900], TEXT[:700].encode()])
)
def test_any_bytes_are_records_or_a_named_error(read, noise, before):
    sound(read, before + noise)


def sound(read, data):
    try:
        kernels = read(data, "any")
    except CounterError as error:
        assert error.where and error.mend and len(str(error)) < 2000
        return
    assert kernels and all(isinstance(kernel, KernelRecord) for kernel in kernels)
    assert all(isinstance(value, float) for kernel in kernels for value in kernel.metrics.values())
    assert all(not math.isinf(value) for kernel in kernels for value in kernel.metrics.values())


@pytest.mark.parametrize("name", ["gpumode_a100_square_ncu.txt", "nsightful_t4_copy_blocked.details.csv"])
def test_recorded_text_cut_anywhere_never_gives_fewer_kernels(read, name):
    whole = recorded(name).read_bytes()
    kernels = read_kernels(recorded(name))
    for cut in range(0, len(whole), len(whole) // 60):
        try:
            found = read(whole[:cut], name)
        except CounterError as error:
            assert error.where and error.mend
            continue
        assert len(found) == len(kernels)
