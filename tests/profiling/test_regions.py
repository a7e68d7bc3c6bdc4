import pytest
import torch
from torch import nn
from torch.profiler import record_function
from trace_kit import call, event, kernel, op, write

from helpers.profiling.capture import capture
from helpers.profiling.regions import RegionError, region_times
from helpers.profiling.trace import read_trace


def named(name, start, end):
    return event("user_annotation", name, start, end)


def engine(name, start, end, number, tid=1):
    title = f"autograd::engine::evaluate_function: {name}"
    return op(title, start, end, tid=tid, Sequence_number=number)


def test_backward_is_found_by_the_numbers_of_the_nodes(tmp_path):
    trace = read_trace(
        write(
            tmp_path / "made.json",
            [
                op("aten::exp", 0, 5, Sequence_number=10),
                named("part", 10, 40),
                op("aten::linear", 12, 22, Sequence_number=11),
                op("aten::mm", 14, 20, Sequence_number=12),
                op("aten::to", 30, 31, Sequence_number=13),
                op("aten::sum", 50, 55, Sequence_number=13),
                engine("SumBackward0", 60, 61, 13, tid=2),
                engine("MmBackward0", 62, 72, 12, tid=2),
                engine("TBackward0", 73, 74, 11, tid=2),
                engine("ExpBackward0", 75, 79, 10, tid=2),
            ],
        )
    )
    found = region_times(trace, "part")
    assert (found.calls, found.nodes) == (1, 2)
    assert found.forward == pytest.approx(11e-6) and found.backward == pytest.approx(11e-6)


def test_kernels_count_where_there_are_some(tmp_path):
    events = [
        named("part", 0, 20),
        op("aten::mm", 2, 10, Sequence_number=1, External_id=5),
        call("cudaLaunchKernel", 4, 6, correlation=1),
        kernel("gemm", 8, 108, correlation=1),
        engine("MmBackward0", 30, 40, 1),
        call("cudaLaunchKernel", 32, 34, correlation=2),
        kernel("gemm", 110, 310, correlation=2),
    ]
    found = region_times(read_trace(write(tmp_path / "made.json", events)), "part")
    assert found.forward == pytest.approx(100e-6) and found.backward == pytest.approx(200e-6)


def test_each_layer_of_a_real_model_gets_its_own_nodes(tmp_path):
    layers = nn.ModuleList([nn.Linear(8, 8), nn.Softplus(), nn.Linear(8, 8)])

    def step():
        x = torch.ones(4, 8)
        for index, layer in enumerate(layers):
            with record_function(f"layer {index}"):
                x = layer(x)
        x.sum().backward()

    trace = read_trace(capture(step, tmp_path / "real.json", steps=3))
    found = [region_times(trace, f"layer {index}") for index in range(3)]
    assert [one.calls for one in found] == [3, 3, 3]
    assert [one.nodes for one in found] == [6, 3, 6]  # a product and the transpose of its weight; SoftplusBackward0
    assert all(one.backward > 0 for one in found)


def test_a_name_that_is_not_there_is_told(tmp_path):
    trace = read_trace(write(tmp_path / "made.json", [named("part", 0, 2), op("aten::mm", 0, 1)]))
    with pytest.raises(RegionError, match=r"'other'[\s\S]*part"):
        region_times(trace, "other")
    assert region_times(trace, "part").backward == 0
