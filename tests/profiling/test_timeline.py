from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import pyplot

from helpers.profiling.timeline import (
    LANES,
    TimelineError,
    intersection,
    lanes_of,
    length,
    timeline_figure,
    union,
)
from helpers.profiling.trace import Event, Trace

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1])), max_size=12)


def ticks(intervals):
    return {tick for start, end in intervals for tick in range(start, end)}


@given(spans)
def test_a_union_covers_the_same_time_without_overlap(intervals):
    merged = union(intervals)
    assert ticks(merged) == ticks(intervals)
    assert all(a[1] < b[0] for a, b in pairwise(merged))
    assert length(merged) == len(ticks(intervals))


@given(spans, spans)
def test_an_intersection_is_the_shared_time(one, other):
    shared = intersection(union(one), union(other))
    assert ticks(shared) == ticks(one) & ticks(other)
    assert length(shared) == len(ticks(one) & ticks(other))


def event(name, start, end, category="cpu_op", thread=0):
    return Event(name, category, start, end - start, (0, thread))


CPU = Trace(
    (
        event("ProfilerStep#2", 0, 100, "user_annotation"),
        event("gloo:all_gather", 0, 10, "user_annotation", 1),
        event("aten::mm", 5, 25),
        event("FSDP::post_backward_reduce (blocks.0)", 30, 60, "user_annotation"),
        event("gloo:all_reduce", 40, 60, "user_annotation", 1),
        event("aten::add", 50, 55),
        event("gloo:all_reduce", 70, 80, "user_annotation", 1),
        event("c10d::_allgather_base_", 0, 1),
    ),
    rank=3,
    world=4,
)


def test_exposed_is_the_communication_that_nothing_hides():
    """Gathers 0-10, reductions 40-60 and 70-80 without the compute at 5-25 and 50-55."""
    assert lanes_of(CPU).exposed == 5 + 15 + 10


def test_gloo_work_is_sorted_into_lanes_and_its_reduce_scatter_recognised():
    lanes = lanes_of(CPU)
    assert lanes.rank == 3
    assert lanes.lanes["all-gather"] == ((0, 10),)
    assert lanes.lanes["reduce-scatter"] == ((40, 60),)
    assert lanes.lanes["all-reduce"] == ((70, 80),)
    assert lanes.lanes["compute"] == ((5, 25), (50, 55))
    assert lanes.overlap == pytest.approx((5 + 5) / 40)


def test_on_a_gpu_kernels_are_sorted_and_operators_ignored():
    trace = Trace(
        (
            event("aten::mm", 0, 100),
            event("ncclDevKernel_AllGather_RING_LL", 0, 10, "kernel", 7),
            event("ncclDevKernel_ReduceScatter_Sum_f32", 20, 30, "kernel", 7),
            event("ncclKernel_AllReduce", 40, 50, "kernel", 7),
            event("ncclKernel_SendRecv_RING_SIMPLE", 60, 70, "kernel", 7),
            event("sm90_xmma_gemm", 5, 25, "kernel", 8),
            event("Memcpy HtoD", 26, 28, "gpu_memcpy", 8),
        )
    )
    lanes = lanes_of(trace)
    assert [lanes.lanes[name] for name in LANES[1:]] == [((0, 10),), ((20, 30),), ((40, 50),), ((60, 70),)]
    assert lanes.seconds("compute") == 20
    assert lanes.overlap == pytest.approx(10 / 40)


def test_nothing_communicated_is_no_overlap():
    assert lanes_of(Trace((event("aten::mm", 0, 1),))).overlap == 0.0


def test_the_figure_has_two_rows_a_rank_and_names_the_lanes_that_are_there():
    figure = timeline_figure([CPU, CPU], window=(0, 50))
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert labels == ["rank 3 compute", "rank 3 communication"] * 2
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(LANES[:4])
    assert figure.axes[0].get_xlim() == (0, 50_000)
    pyplot.close(figure)


def test_no_trace_is_named():
    with pytest.raises(TimelineError, match="no trace"):
        timeline_figure([])
