"""The `.ncu-rep` reader against the wheel's own values, conservation laws and published figures; damaged files."""

import functools
import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest
from counters_kit import REPORTS, kernels_of, recorded

from helpers.profiling.counters import ncu_rep
from helpers.profiling.counters.aliases import LABELS, NEEDS
from helpers.profiling.counters.ncu_rep import frame, plain_text, read_ncu_rep
from helpers.profiling.counters.reader import read_kernels
from helpers.profiling.counters.record import CounterError, KernelRecord

NONE = [pytest.param("", marks=pytest.mark.skip(reason="needs the recorded reports of shared/profiles"))]
ALL = REPORTS or NONE
LADDER = "esmm_a10g_sgemm_ladder_5c6231e.ncu-rep"
NAIVE = "leimao_rtx3090_gemm_naive.ncu-rep"


def length_and(content):
    return len(content).to_bytes(4, "little") + content


def field(number, value):
    """A protobuf field: a varint for an int, bytes else."""
    if isinstance(value, bytes):
        return bytes([number << 3 | 2]) + varint(len(value)) + value
    return bytes([number << 3]) + varint(value)


def varint(value):
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def block(*, sources=0, results=0, session=b"", items=()):
    payload = b"".join(map(length_and, items))
    header = field(1, sources) + field(2, results) + (field(3, session) if session else b"") + field(5, len(payload))
    return length_and(header) + payload


VERSION = field(8, field(1, b"Nsight Compute Target") + field(2, b"2025.1.0.0 (build 1)"))
PARTS = [
    block(session=field(2, 1_740_000_000)),
    block(sources=1, items=[b"a cubin"]),
    block(results=1, items=[b"a kernel"]),
    block(session=VERSION),
    block(results=1, items=[b"another"]),
]
SMALL = b"NVR\0" + length_and(field(1, 7)) + b"".join(PARTS)


def test_the_frame_is_walked():
    found = frame(SMALL, Path("r"))
    assert (found.kernels, found.version, found.date) == (2, "2025.1.0", "2025-02-19")


def test_a_frame_cut_anywhere_is_named():
    boundaries = {len(SMALL) - len(PARTS[4])}  # the last kernel never was there: a shorter session looks like this
    for cut in range(4, len(SMALL)):
        if cut in boundaries:
            assert frame(SMALL[:cut], Path("r")).kernels == 1
            continue
        with pytest.raises(CounterError, match="cut") as caught:
            frame(SMALL[:cut], Path("r"))
        assert caught.value.mend


def test_a_source_without_its_kernel_is_a_cut():
    with pytest.raises(CounterError, match="last blocks"):
        frame(SMALL + PARTS[1], Path("r"))


def test_a_block_that_holds_other_than_it_says_is_named():
    lying = block(results=2, items=[b"one"])
    with pytest.raises(CounterError, match="holds 1 items, and says 2"):
        frame(SMALL + lying, Path("r"))


def test_any_bytes_after_the_magic_are_a_frame_or_a_named_error():
    rng = random.Random(4)
    for _ in range(3000):
        data = bytearray(SMALL)
        for _ in range(rng.choice((1, 1, 3))):
            data[rng.randrange(4, len(data))] = rng.randrange(256)
        try:
            assert frame(bytes(data[: rng.choice((len(data), rng.randrange(4, len(data))))]), Path("r")).kernels >= 0
        except CounterError as error:
            assert error.where and error.mend


def test_a_report_without_kernels_is_named(tmp_path):
    path = tmp_path / "none.ncu-rep"
    path.write_bytes(b"NVR\0" + length_and(field(1, 7)) + PARTS[0] + PARTS[3])
    with pytest.raises(CounterError, match="holds no kernel"):
        read_kernels(path)


def test_without_the_wheel_the_error_says_how_to_get_it(tmp_path, monkeypatch):
    path = tmp_path / "r.ncu-rep"
    path.write_bytes(SMALL)
    monkeypatch.setattr(ncu_rep, "has_wheel", lambda: False)
    with pytest.raises(CounterError, match="needs NVIDIA's ncu-report") as caught:
        read_kernels(path)
    assert "-m pip install ncu-report" in caught.value.mend and "ncu --import r.ncu-rep" in caught.value.mend


CHILD = "import sys, time, os\n{body}\n"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("os.abort()", "exit status -6"),
        ("time.sleep(60)", "did not read it within"),
        ("sys.exit('no such thing')", "exit status 1.*no such thing"),
        ("", "exit status 0"),
        ("open(sys.argv[2], 'w').write('[]')", "2 kernels are in the file, 0 can be read"),
        ("""open(sys.argv[2], 'w').write('[{"name": "k", "metrics": {}, "rules": []}]' * 1)""", "1 can be read"),
        ("""open(sys.argv[2], 'w').write('[' + ','.join(['{"name": "", "metrics": {}, "rules": []}'] * 2) + ']')""",
         "has no counters"),
    ],
)  # fmt: skip
def test_whatever_the_wheel_does_the_reader_survives(tmp_path, monkeypatch, body, message):
    path, child = tmp_path / "r.ncu-rep", tmp_path / "child.py"
    path.write_bytes(SMALL)
    child.write_text(CHILD.format(body=body))
    monkeypatch.setattr(ncu_rep, "CHILD", child)
    monkeypatch.setattr(ncu_rep, "has_wheel", lambda: True)
    with pytest.raises(CounterError, match=message) as caught:
        read_ncu_rep(path, deadline=1.0)
    assert caught.value.mend and str(path) in caught.value.where


def test_links_in_messages_become_words():
    said = "See the @section:LaunchStats:Launch Statistics@ and the @url:Guide:https://a.b/c#d@ (0x@source:7f:7f@)."
    assert plain_text(said) == "See the Launch Statistics and the Guide (https://a.b/c#d) (0x7f)."


DIRECT = """
import json, sys, ncu_report
report = ncu_report.load_report(sys.argv[1])
for r in range(report.num_ranges()):
    for a in range(report.range_by_idx(r).num_actions()):
        action = report.range_by_idx(r).action_by_idx(a)
        metrics = [action.metric_by_name(name) for name in action.metric_names()]
        values = {m.name(): m.as_double() for m in metrics if m.kind() != m.ValueKind_STRING}
        labels = [[s.name(), m.label(), m.name()] for s in action.sections() for m in s.header_metrics()]
        print(json.dumps([action.name(action.NameBase_DEMANGLED), values, labels]))
"""


@pytest.fixture(scope="module")
def direct():
    """The wheel's own values of a report: [name, {metric: double}, [[section, label, metric]]] of each kernel."""

    @functools.cache
    def ask(path):
        done = subprocess.run([sys.executable, "-c", DIRECT, str(path)], capture_output=True, text=True, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    return ask


@pytest.mark.parametrize("name", ALL)
def test_every_number_is_the_wheels_own_in_base_units(direct, name):
    path = recorded(name)
    kernels, theirs = kernels_of(path), direct(path)
    assert [kernel.name for kernel in kernels] == [entry[0] for entry in theirs]
    for kernel, (_, values, _) in zip(kernels, theirs):
        assert len(kernel.metrics) > 200 and kernel.source.tool.startswith("ncu 20") and kernel.source.date > "2020"
        for metric, value in kernel.metrics.items():
            scale = {"gpu__time_duration": 1e-9}.get(metric.partition(".")[0], 1.0)
            scale = 1e3 if metric.endswith(("_clock_rate", "_khz")) else scale
            assert value == pytest.approx(values[metric] * scale, rel=1e-12, nan_ok=True), metric


@pytest.mark.parametrize("name", ALL)
def test_the_labels_of_the_pages_are_those_of_nvidias_sections(direct, name):
    wrong = []
    for _, _, labels in direct(recorded(name)):
        for section, label, metric in labels:
            ours = LABELS.get(section, {}).get(label)
            wrong += [(section, label, metric)] if ours not in (None, metric) else []
    assert not wrong


@pytest.mark.parametrize("name", ALL)
def test_bytes_cycles_and_blocks_are_conserved(name):
    for kernel in kernels_of(recorded(name)):
        if kernel.failed:
            continue
        duration = kernel.require("duration")
        assert kernel.require("blocks") == math.prod(kernel.grid)
        assert kernel.require("threads_per_block") == math.prod(kernel.block)
        clock = kernel.metrics["gpc__cycles_elapsed.avg.per_second"]
        assert kernel.metrics["gpc__cycles_elapsed.max"] == pytest.approx(clock * duration, rel=0.08)
        rate = kernel.get("dram_bytes_per_second")
        if rate is not None:  # passes differ, so the counters of two passes do too
            moved = kernel.require("dram_read_bytes") + kernel.require("dram_write_bytes")
            assert moved == pytest.approx(rate * duration, rel=0.03)
            roof = kernel.require("dram_peak_bytes_per_cycle") * kernel.require("dram_clock")
            assert 100 * rate / roof <= kernel.require("dram_percent") + 1


@pytest.mark.parametrize("name", ALL)
def test_a_throughput_is_the_largest_of_its_parts(name):
    for kernel in kernels_of(recorded(name)):
        for need in ("sm_percent", "memory_percent"):
            parts = kernel.breakdown(need)
            if kernel.failed:
                assert not parts
            elif parts:
                assert parts[0][1] == pytest.approx(kernel.require(need), rel=1e-6), (kernel.name, need)


def test_published_figures_are_read():
    """Figures of the course's reference, section 2.4, which were read off these reports by hand."""
    naive, coalesced = kernels_of(recorded(NAIVE))
    found = [round(naive.require(need), 1) for need in ("sm_percent", "memory_percent", "dram_percent")]
    assert found == [11.9, 98.5, 0.2]
    assert int(naive.require("stall_lg_throttle")) == 156
    found = [round(coalesced.require(need), 1) for need in ("sm_percent", "memory_percent", "dram_percent")]
    assert found == [98.2, 98.2, 1.7] and round(coalesced.require("lsu_percent")) == 98
    flop = coalesced.require("fadd_per_cycle") + coalesced.require("fmul_per_cycle")
    flop += coalesced.require("ffma_flop_per_cycle")
    assert round(100 * flop / coalesced.require("fp32_peak_per_cycle"), 1) == 6.1
    stream, mix = kernels_of(recorded("indexspaces_a40_julia_74de19f.ncu-rep"))
    assert [round(stream.require(need), 1) for need in ("dram_percent", "sm_percent")] == [95.7, 17.6]
    assert [round(mix.require(need)) for need in ("alu_percent", "tensor_percent", "dram_percent")] == [66, 54, 32]
    cutlass = kernels_of(recorded("panjd_a100_cutlass_gemm.ncu-rep"))[0]
    assert round(cutlass.require("waves"), 2) == 0.44 and round(cutlass.require("tensor_percent")) == 18
    tiny = kernels_of(recorded("mojo_gtx1660ti_tiny_grids.ncu-rep"))[0]
    assert round(tiny.require("waves"), 3) == 0.003


def test_the_device_says_its_own_peaks():
    kernel = kernels_of(recorded(NAIVE))[0]
    lanes = kernel.require("fp32_peak_per_cycle")
    assert lanes * kernel.require("attribute_clock_rate") == pytest.approx(35.6e12, rel=0.01)  # the RTX 3090's
    bytes_per_cycle = kernel.require("attribute_bus_width") / 8 * 2
    assert bytes_per_cycle * kernel.require("attribute_memory_clock_rate") == pytest.approx(936e9, rel=0.001)


def test_kernels_whose_collection_failed_are_kept_and_marked():
    for name, number in (("esmm_a10g_nan_failed_kernel_e22c00d.ncu-rep", 4), (LADDER, 6)):
        kernels = kernels_of(recorded(name))
        assert len(kernels) == number and [bool(kernel.failed) for kernel in kernels] == [False] * (number - 1) + [
            True
        ]
        broken = kernels[-1]
        assert math.isnan(broken.get("duration")) and math.isnan(broken.get("sm_percent"))
        assert broken.get("sm_count") == 80 and broken.device == "NVIDIA A10G" and broken.grid == ()


def test_most_needs_are_answered_by_a_full_set():
    kernel = kernels_of(recorded(NAIVE))[0]
    missing = {need for need in NEEDS if kernel.get(need) is None}
    assert missing <= {"dram_bytes", "l1_bytes", "l2_bytes", "stall_gmma", "fp16_percent"}


def test_a_report_cut_in_half_is_named(tmp_path):
    whole = recorded(NAIVE).read_bytes()
    path = tmp_path / "half.ncu-rep"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CounterError, match=r"cut or damaged|last blocks"):
        read_kernels(path)


@pytest.mark.parametrize("name", ALL)
def test_a_report_cut_anywhere_is_named_before_the_wheel_sees_it(name):
    whole = recorded(name).read_bytes()
    kernels = frame(whole, Path(name)).kernels
    for cut in sorted(random.Random(7).sample(range(4, len(whole)), 100)):
        with pytest.raises(CounterError):
            frame(whole[:cut], Path(name))
    assert kernels == len(kernels_of(recorded(name)))


def flipped(data, rng):
    """A report with bits turned, bytes overwritten, taken out or put in, at the front more often."""
    damaged = bytearray(data)
    at, size = rng.randrange(8, rng.choice((len(data), min(len(data), 60000)))), rng.choice((1, 2, 4, 50, 3000))
    kind = rng.randrange(4)
    if kind == 0:
        for _ in range(rng.choice((1, 1, 4, 20))):
            damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == 1:
        damaged[at : at + size] = rng.randbytes(size)[: len(data) - at]
    elif kind == 2:
        del damaged[at : at + size]
    else:
        damaged[at:at] = data[at // 2 : at // 2 + size]
    return bytes(damaged)


@pytest.mark.parametrize("name", [NAIVE, "mojo_gtx1660ti_tiny_grids.ncu-rep"])
def test_a_damaged_report_is_all_its_kernels_or_a_named_error(tmp_path, name):
    whole, rng = recorded(name).read_bytes(), random.Random(3)
    kernels = len(kernels_of(recorded(name)))
    for _ in range(20):
        path = tmp_path / "damaged.ncu-rep"
        path.write_bytes(flipped(whole, rng))
        try:
            found = read_kernels(path)
        except CounterError as error:
            assert error.where and error.mend and len(str(error)) < 2000
            continue
        assert len(found) == kernels and all(isinstance(kernel, KernelRecord) for kernel in found)
