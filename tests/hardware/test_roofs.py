import pytest
import torch

from helpers.hardware.roofs import RoofError, gemm_roof, triad_roof


@pytest.mark.parametrize(("dtype", "name"), [("fp32", "GEMM 32³"), ("bf16", "GEMM 32³")])
def test_rate_times_the_shortest_time_is_the_work(dtype, name):
    roof = gemm_roof(32, dtype, repeats=3)
    assert roof.name == name and roof.rate.unit == "FLOP/s"
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
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "size of 0"),
        ((2.5,), "size of 2.5"),
        ((8, "fp8"), "no dtype 'fp8'"),
        ((8, "fp32", "tpu"), "no device 'tpu'"),
    ],
)
def test_what_cannot_be_measured_is_named(arguments, message):
    with pytest.raises(RoofError, match=message):
        gemm_roof(*arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_an_absent_device_names_those_that_are_there():
    with pytest.raises(RoofError, match="no device 'cuda'") as caught:
        triad_roof(1, "cuda")
    assert "cpu" in caught.value.mend
