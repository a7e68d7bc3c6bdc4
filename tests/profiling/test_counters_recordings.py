"""The kernels that the course ships: whole, stamped, and the same as the reports they were distilled from."""

import importlib.util
import json
import math
import re
from pathlib import Path

import pytest
from counters_kit import RECORDED, kernels_of, recorded

from helpers.profiling.counters.distil import distil, from_json, load, save, to_json
from helpers.profiling.counters.record import CounterError, KernelRecord, Source
from helpers.profiling.recordings import KERNELS, RecordingError, recorded_kernel, recorded_kernels

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("distil_kernels", ROOT / "tools" / "distil_kernels.py")
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)


def test_every_recorded_kernel_says_where_it_is_from():
    kernels = recorded_kernels()
    assert len(kernels) >= 20 and list(kernels) == sorted(tool.CHOSEN)
    for name, kernel in kernels.items():
        assert kernel.device and kernel.what and kernel.source.tool.startswith("ncu"), name
        assert re.fullmatch(
            r"\S+/\S+ @[0-9a-f]{8}, (MIT|BSD-3-Clause|BSD-style|Apache-2.0)", kernel.source.origin
        ) or (kernel.source.origin.startswith("AveryClapp/ESMM-Research @"))
        assert re.fullmatch(r"(\d{4}-\d\d-\d\d)?", kernel.source.date), name
        assert (KERNELS / f"{name}.json").stat().st_size < 20_000
    assert len({kernel.device for kernel in kernels.values()}) >= 8


def test_a_number_of_a_recording_carries_its_stamp():
    shown = str(recorded_kernel("a40_stream_store").quantity("dram_percent"))
    assert shown == "95.7 % [recorded: NVIDIA A40, 2022-12-02, ncu 2022.1.1]"
    assert str(recorded_kernel("rtx5070_saxpy").quantity("duration")).startswith(
        "293 µs [recorded: NVIDIA GeForce RTX 5070"
    )
    with pytest.raises(CounterError, match="NaN"):
        recorded_kernel("a10g_sgemm_failed").quantity("duration")


def test_one_recording_failed_and_the_others_have_a_duration():
    kernels = recorded_kernels()
    assert [name for name, kernel in kernels.items() if kernel.failed] == ["a10g_sgemm_failed"]
    assert all(kernel.require("duration") > 0 for name, kernel in kernels.items() if not kernel.failed)


@pytest.mark.parametrize("name", tool.CHOSEN)
def test_the_recordings_are_the_distilled_reports(tmp_path, monkeypatch, name):
    recorded(tool.CHOSEN[name][0].file)
    monkeypatch.setattr(tool, "read_kernels", kernels_of)
    save(tool.kernel(RECORDED, name), tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (KERNELS / f"{name}.json").read_bytes()


def test_distilling_keeps_seven_digits_and_loses_no_verdict():
    sm = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
    metrics = {sm: 12.3456789123, "a__x.avg": 12.3456789123, "a__zero.avg": 0.0, "unneeded": 4.0}
    record = KernelRecord(
        "k",
        metrics=metrics | {"gpu__time_duration.sum": math.nan},
        rules=(("Occupancy", "low"), ("SOLBottleneck", "High Throughput: yes")),
        breakdowns={sm: ("a__x.avg", "a__zero.avg")},
    )
    small = distil(record)
    assert set(small.metrics) == {sm, "a__x.avg", "gpu__time_duration.sum"} and small.metrics[sm] == 12.34568
    assert small.rules == (("SOLBottleneck", "High Throughput: yes"),) and small.breakdowns == {sm: ("a__x.avg",)}
    assert small.failed == ("gpu__time_duration.sum",)


def test_a_record_comes_back_from_json_as_it_was(tmp_path):
    record = KernelRecord(
        "void f<1>(float *)", "GPU", (9, 0), (1, 2, 3), (4, 5, 6), {"a": 1.5, "b": math.nan},
        (("R", "said"),), Source("f", "ncu 1", "2026-01-02", "o/r @1, MIT"), {"a": ("b",)}, "what",
    )  # fmt: skip
    save(record, tmp_path / "k.json")
    assert repr(load(tmp_path / "k.json")) == repr(record) and [p.name for p in tmp_path.iterdir()] == ["k.json"]
    assert "NaN" not in (tmp_path / "k.json").read_text()


UNKNOWN = '{"name": "k", "metrics": {}, "source": {"file": "f"}, "colour": 1}'
NO_NUMBER = '{"name": "k", "metrics": {"a": "x"}, "source": {"file": "f"}}'


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "3", UNKNOWN, NO_NUMBER, "[" * 100_000])
def test_what_is_no_distilled_kernel_is_named(tmp_path, content):
    path = tmp_path / "k.json"
    path.write_text(content)
    with pytest.raises(CounterError) as caught:
        load(path)
    assert str(path) in caught.value.where and caught.value.mend


def test_a_recording_cut_anywhere_is_named(tmp_path):
    text = (KERNELS / "rtx5070_saxpy.json").read_text().rstrip()
    for cut in range(0, len(text), 7):
        with pytest.raises(CounterError):
            path = tmp_path / "k.json"
            path.write_text(text[:cut])
            load(path)


def test_a_kernel_that_is_not_recorded_is_named(monkeypatch, tmp_path):
    with pytest.raises(RecordingError, match=r"no kernel 'h200_gemm'[\s\S]*a40_stream_store"):
        recorded_kernel("h200_gemm")
    monkeypatch.setattr("helpers.profiling.recordings.KERNELS", tmp_path)
    with pytest.raises(RecordingError, match="no recorded kernel is here"):
        recorded_kernels()


def test_json_is_plain():
    record = recorded_kernel("a10g_sgemm_failed")
    assert repr(from_json(json.loads(json.dumps(to_json(record), allow_nan=False)))) == repr(record)
