"""Bytes and seconds of collectives: formulas against the loopback device, and fits against known lines."""

import pytest
import torch
import torch.distributed as dist

from helpers.training.collectives import Collective
from helpers.training.cost import CostError, Fit, fit, predicted_seconds, time_collective
from helpers.training.ranks import Ranks, RanksError
from helpers.training.traffic import TrafficError, counts_loopback, measure_loopback, sent_bytes

MIB = 2**20


def carried(kind, size):
    world = dist.get_world_size()
    whole, part = torch.ones(size // 4), torch.ones(size // 4 // world)
    calls = {
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
        "all_reduce": lambda: dist.all_reduce(whole),
    }
    calls[kind]()
    return measure_loopback(calls[kind])


@pytest.mark.skipif(not counts_loopback(), reason="this system does not count what its loopback device carries")
@pytest.mark.parametrize("world", [2, 4])
def test_gloo_carries_what_its_formula_says(world):
    """gloo's reduce-scatter moves twice the ring's bytes; the others are the ring's."""
    with Ranks(world) as ranks:
        for kind in ("all_gather", "reduce_scatter", "all_reduce"):
            predicted = world * sent_bytes(Collective(kind, world, 1, 8 * MIB), "gloo")
            counted = min(ranks.run(carried, kind, 8 * MIB))
            assert counted == pytest.approx(predicted, rel=0.03), kind
            ratio = predicted / (world * sent_bytes(Collective(kind, world, 1, 8 * MIB), "nccl"))
            assert ratio == (2 if kind == "reduce_scatter" else 1)


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather():
    parts = [sent_bytes(Collective(kind, 4, 1, 1000), "nccl") for kind in ("all_gather", "reduce_scatter")]
    assert parts == [750, 750] and sent_bytes(Collective("all_reduce", 4, 1, 1000), "nccl") == 1500
    assert sent_bytes(Collective("all_reduce", 1, 1, 1000), "nccl") == 0
    with pytest.raises(TrafficError, match="no formula for 'mpi'"):
        sent_bytes(Collective("all_reduce", 4, 1, 1000), "mpi")


def test_a_fit_finds_the_line_that_made_the_points():
    sizes = [10**3, 10**5, 10**7]
    found = fit(sizes, [1e-4 + size / 2e9 for size in sizes])
    assert found.alpha == pytest.approx(1e-4) and found.beta == pytest.approx(2e9)
    assert found.worst < 1e-9 and found.seconds(0) == found.alpha
    assert [str(q.unit) for q in found.quantities().values()] == ["s", "B/s"]


def test_a_fit_never_has_a_negative_start():
    found = fit([1.0, 2.0, 4.0], [0.9, 2.1, 4.4])
    assert found.alpha == 0 and found.beta == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize(("sizes", "seconds"), [([5, 5], [1, 2]), ([1, 2], [1, 0]), ([1, 2], [2, 1])])
def test_points_without_a_line_are_refused(sizes, seconds):
    with pytest.raises(CostError):
        fit(sizes, seconds)


def test_collectives_are_timed_on_real_ranks_and_add_up():
    with Ranks(2) as ranks:
        seconds = ranks.run(time_collective, "all_gather", [4096, 65536], 3)
    assert all(len(times) == 2 and min(times) > 0 for times in seconds)
    line = {"all_gather": Fit(1.0, 10.0, 0.0)}
    assert predicted_seconds([Collective("all_gather", 4, 3, 100)], line) == 13
    with pytest.raises(RanksError, match="there is no collective 'gather'"), Ranks(1) as one:
        one.run(time_collective, "gather", [8])
