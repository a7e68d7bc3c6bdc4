import pytest
import torch

from helpers.hardware import roofs
from helpers.hardware.roofs import (
    Level,
    Roof,
    RoofError,
    cache_roofs,
    cache_sizes,
    gemm_dtypes,
    gemm_roof,
    gemm_roofs,
    plateaus,
    triad_roof,
)
from helpers.measure import Samples


@pytest.fixture(autouse=True)
def briefly(monkeypatch):
    """No roof is asserted here, so none has to be waited for."""
    monkeypatch.setattr(roofs, "ROOF_SECONDS", 0.0)


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16", "fp16", "int8"])
def test_rate_times_the_shortest_time_is_the_work(dtype):
    roof = gemm_roof(32, dtype, repeats=3)
    assert roof.name == "GEMM 32³" and roof.rate.unit == "FLOP/s" and roof.dtype == dtype
    assert roof.rate.value * min(roof.samples.seconds) == pytest.approx(2 * 32**3)
    assert len(roof.samples.seconds) == 3


def test_the_triad_counts_three_arrays():
    roof = triad_roof(1, repeats=2)
    assert roof.rate.unit == "B/s"
    assert roof.rate.value * roof.samples.best.value == pytest.approx(3 * 2**20)


def test_threads_are_set_for_the_measurement_and_given_back():
    before = torch.get_num_threads()
    assert gemm_roof(16, repeats=1, threads=1).threads == 1
    assert triad_roof(1, repeats=1, threads=1).threads == 1
    assert cache_roofs(rounds=1, threads=1, largest=2**14).sweep[0][1].threads == 1
    assert torch.get_num_threads() == before


def test_fp32_is_fp32_whatever_was_set_before(monkeypatch):
    settings, seen = torch.backends.cuda.matmul, []
    before, settings.allow_tf32 = settings.allow_tf32, True
    monkeypatch.setattr(torch, "mm", lambda *a, **k: seen.append(settings.allow_tf32))
    try:
        gemm_roof(16, repeats=1)
        assert set(seen) == {False} and settings.allow_tf32 is True
    finally:
        settings.allow_tf32 = before


def test_every_dtype_that_the_device_multiplies_has_a_roof():
    found = gemm_dtypes()
    assert {"fp32", "bf16"} <= set(found) and "tf32" not in found
    assert tuple(roof.dtype for roof in gemm_roofs(32, repeats=1)) == found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "size of 0"),
        ((2.5,), "size of 2.5"),
        ((8, "fp8"), "no dtype 'fp8'"),
        ((8, "fp32", "tpu"), "no device 'tpu'"),
        ((32, "tf32", "cpu"), "cpu does not multiply tf32"),
    ],
)
def test_what_cannot_be_measured_is_named(arguments, message):
    with pytest.raises(RoofError, match=message):
        gemm_roof(*arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_an_absent_device_names_those_that_are_there():
    for call in (lambda: triad_roof(1, "cuda"), lambda: cache_roofs("cuda"), lambda: gemm_dtypes("cuda")):
        with pytest.raises(RoofError, match="no device 'cuda'") as caught:
            call()
        assert "cpu" in caught.value.mend


def test_short_runs_are_repeated_until_time_has_passed(monkeypatch):
    monkeypatch.setattr(roofs, "ROOF_SECONDS", 0.02)
    roof = gemm_roof(16, repeats=2)
    assert len(roof.samples.seconds) > 2 and 0.02 <= sum(roof.samples.seconds) < 0.5


def roof(seconds, busy, threads=2, device="cpu"):
    return Roof("GEMM", 10, "FLOP", "fp32", device, threads, Samples(tuple(seconds)), busy)


def test_a_roof_measured_beside_other_work_says_so():
    assert roof([1.0, 1.0], busy=3.9).caution == ""
    assert roof([1.0, 1.0], busy=3.9).share == pytest.approx(0.975)
    assert "had 25 % of their processors" in roof([1.0, 3.0], busy=2.0).caution
    assert roof([1.0], busy=0.0, threads=0, device="cuda").caution == ""


def test_a_sweep_reads_each_set_as_often_as_it_says(monkeypatch):
    monkeypatch.setitem(roofs.READ_BYTES, "cpu", 2**16)
    found = cache_roofs(rounds=2, largest=3 * 2**16)
    sizes = [size for size, _ in found.sweep]
    assert sizes == sorted(set(sizes)) and sizes[-1] == 3 * 2**16
    for size, roof in found.sweep:
        assert roof.work == (2**16 // size * size if size <= 2**16 else 2**16)
        assert 2 <= len(roof.samples.seconds) <= 4
    values = torch.ones(2**10)
    total = []
    monkeypatch.setattr(roofs, "time_call", lambda call, **k: total.append(call()) or Samples((1.0,)))
    roofs._read(values, "cpu")
    roofs._read(torch.ones(2**15), "cpu")
    assert total[0].tolist() == [2**10] * 2**4 and total[1].item() == 2**14


def test_levels_are_the_best_of_the_sets_that_fit_them():
    sweep = tuple((size, roof([1 / rate], 1.0)) for size, rate in
                  ((8, 90), (24, 100), (40, 70), (64, 40), (200, 50), (390, 20), (900, 9)))  # fmt: skip
    levels = plateaus(sweep, {"L1": 32, "L2": 300})
    assert [(level.name, level.working_set, level.size) for level in levels] == [
        ("L1", 24, 32),
        ("L2", 200, 300),
        ("DRAM", 900, 0),
    ]
    assert all(isinstance(level, Level) for level in levels)


def test_without_a_set_beyond_the_caches_memory_is_not_claimed():
    sweep = tuple((size, roof([1 / 10], 1.0)) for size in (8, 24, 400))
    assert plateaus(sweep, {"L1": 32, "L2": 300})[-1].name == "L2 or DRAM"
    [only] = plateaus(sweep, {})
    assert only.name == "DRAM"


def test_cache_sizes_grow_and_come_from_the_system(tmp_path):
    sizes = list(cache_sizes().values())
    assert sizes == sorted(sizes)
    for index, (level, kind, size) in enumerate(
        (("1", "Data", "48K"), ("1", "Instruction", "64K"), ("2", "Unified", "2M"), ("3", "Unified", "odd"))
    ):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(text + "\n")
    (tmp_path / "index4").mkdir()
    assert roofs._linux_caches(tmp_path) == {"L1": 48 * 2**10, "L2": 2 * 2**20}
