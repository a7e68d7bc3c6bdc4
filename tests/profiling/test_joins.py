"""Operator, launch, kernel: against plain loops over the recorded traces, and case by case."""

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_kit import RECORDED, call, event, intervals, kernel, op, recorded, write

from helpers.profiling.joins import How, Reason, join
from helpers.profiling.merge import merge_traces
from helpers.profiling.trace import device_seconds, read_trace


def enclosing(launch, operators):
    """The shortest operator around a launch on its thread, by looking at all; the later written of equal ones."""
    inside = [
        o
        for o in reversed(operators)
        if (o["pid"], o["tid"]) == (launch["pid"], launch["tid"]) and o["ts"] <= launch["ts"] < o["ts"] + o["dur"]
    ]
    return min(inside, key=lambda o: (o["dur"], -o["ts"]), default=None)


@pytest.mark.parametrize("name", RECORDED)
def test_every_kernel_is_joined_or_listed(name):
    joins = join(read_trace(recorded(name)))
    kernels = intervals(name, "kernel")
    joined, unjoined = list(joins.joined), joins.unjoined
    assert len(joined) + len(unjoined) == len(joins) == len(kernels) == sum(joins.counts.values())
    assert Counter(one.kernel for one in (*joined, *unjoined)) == Counter(k["name"] for k in kernels)
    assert sum(one.duration for one in (*joined, *unjoined)) == pytest.approx(1e-6 * sum(k["dur"] for k in kernels))
    assert joins.self_time.sum() == pytest.approx(1e9 * sum(one.duration for one in joined))


@pytest.mark.parametrize("name", RECORDED)
def test_each_kernel_has_the_operator_around_its_launch(name):
    operators, launches = intervals(name, "cpu_op"), intervals(name, "cuda_runtime", "cuda_driver")
    by_correlation = {launch["args"]["correlation"]: launch for launch in launches}
    expected = Counter()
    for k in intervals(name, "kernel"):
        launch = by_correlation[k["args"]["correlation"]]
        own = enclosing(launch, operators)
        expected[k["name"], launch["name"], own and own["name"]] += 1
    joins = join(read_trace(recorded(name)))
    found = Counter((one.kernel, one.launch, one.operator) for one in joins.joined)
    found.update((one.kernel, None, None) for one in joins.unjoined)
    assert found == Counter({(k, launch if own else None, own): n for (k, launch, own), n in expected.items()})


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("hta_a100_alexnet", {How.LAUNCH: 79}),
        ("hta_dist_rank0", {How.LAUNCH: 1138, Reason.NO_OPERATOR: 16}),
        ("hta_dist_rank1", {How.LAUNCH: 1088, Reason.NO_OPERATOR: 16}),
        ("tracelens_h100_bert_small", {How.EXTERNAL_ID: 60}),
        ("tracelens_mi300x_compile_triton", {How.EXTERNAL_ID: 12}),
    ],
)
def test_how_the_recorded_traces_join(name, counts):
    """Counted once with plain loops: External ids of old traces repeat the correlation, newer ones join."""
    assert join(read_trace(recorded(name))).counts == counts


def test_the_one_external_id_that_meets_an_operator_in_the_a100_trace_is_chance():
    """1 of 79 kernels has the id of some operator, and that one was not running at the launch."""
    name = "hta_a100_alexnet"
    operators = {o["args"]["External id"]: o for o in intervals(name, "cpu_op")}
    met = [k for k in intervals(name, "kernel") if k["args"]["External id"] in operators]
    assert len(met) == 1
    [launch] = [
        c for c in intervals(name, "cuda_runtime") if c["args"]["correlation"] == met[0]["args"]["correlation"]
    ]
    wrong = operators[met[0]["args"]["External id"]]
    assert not wrong["ts"] <= launch["ts"] <= wrong["ts"] + wrong["dur"]
    [one] = [
        one
        for one in join(read_trace(recorded(name))).joined
        if one.kernel == met[0]["name"] and one.start == pytest.approx(met[0]["ts"] * 1e-6, abs=1e-6)
    ]
    assert one.operator == enclosing(launch, list(operators.values()))["name"] != wrong["name"]


def test_sixteen_kernels_of_the_optimizer_are_listed_with_its_annotation():
    unjoined = join(read_trace(recorded("hta_dist_rank0"))).unjoined
    assert {one.within for one in unjoined} == {"Optimizer.step#EMAOptimizer.step"}
    assert {one.reason for one in unjoined} == {Reason.NO_OPERATOR}


OPERATORS = (op("outer", 0, 50, External_id=1), op("inner", 10, 40, External_id=2))


@pytest.mark.parametrize(
    ("events", "outcome", "operator"),
    [
        ([call("cudaLaunchKernel", 20, 22, correlation=9), kernel("k", 30, 40, correlation=9, External_id=2)],
         How.EXTERNAL_ID, "inner"),
        ([call("cudaLaunchKernel", 20, 22, correlation=9), kernel("k", 30, 40, correlation=9)], How.LAUNCH, "inner"),
        ([call("cudaLaunchKernel", 45, 46, correlation=9), kernel("k", 60, 70, correlation=9, External_id=2)],
         How.LAUNCH, "outer"),
        ([call("cudaLaunchKernel", 20, 22, tid=2, correlation=9), kernel("k", 30, 40, correlation=9, External_id=2)],
         Reason.NO_OPERATOR, None),
        ([kernel("k", 60, 70, External_id=2)], How.EXTERNAL_ID, "inner"),
        ([kernel("k", 5, 7, External_id=2)], Reason.NO_IDS, None),
        ([kernel("k", 5, 7)], Reason.NO_IDS, None),
        ([kernel("k", 5, 7, correlation=9)], Reason.NO_LAUNCH, None),
        ([call("cudaLaunchKernel", 20, 22, correlation=9), call("cudaLaunchKernel", 23, 24, correlation=9),
          kernel("k", 30, 40, correlation=9)], Reason.AMBIGUOUS, None),
        ([call("cudaGraphLaunch", 20, 22, correlation=9), kernel("k", 30, 40, correlation=9, External_id=2)],
         Reason.GRAPH, None),
        ([call("cudaLaunchKernel", 60, 61, correlation=9), kernel("k", 62, 63, correlation=9)],
         Reason.NO_OPERATOR, None),
    ],
)  # fmt: skip
def test_each_way_to_join_and_each_reason_not_to(tmp_path, events, outcome, operator):
    joins = join(read_trace(write(tmp_path / "t.json", [*OPERATORS, *events])))
    assert joins.counts == {outcome: 1}
    assert [one.operator for one in joins.joined] == ([operator] if operator else [])
    assert [one.reason for one in joins.unjoined] == ([] if operator else [outcome])


def test_two_operators_with_one_id_are_told_apart_by_the_launch(tmp_path):
    events = [op("a", 0, 10, External_id=5), op("b", 20, 30, External_id=5)]
    events += [call("cudaLaunchKernel", 22, 23, correlation=1), kernel("k", 25, 26, correlation=1, External_id=5)]
    [one] = join(read_trace(write(tmp_path / "t.json", events))).joined
    assert (one.operator, one.how) == ("b", How.LAUNCH)


def test_time_on_the_device_goes_to_the_operator_and_to_those_around_it(tmp_path):
    events = [*OPERATORS, op("inner", 12, 14, External_id=3)]
    for number, (at, length) in enumerate([(2, 5), (11, 7), (13, 11)], 1):
        events += [
            call("cudaLaunchKernel", at, at + 1, correlation=number),
            kernel("k", 60, 60 + length, correlation=number),
        ]
    trace = read_trace(write(tmp_path / "t.json", events))
    rows = {row.name: row for row in trace.operators()}
    assert (rows["outer"].device_self, rows["outer"].device_total) == pytest.approx((5e-6, 23e-6))
    assert (rows["inner"].device_self, rows["inner"].device_total) == pytest.approx((18e-6, 18e-6))
    assert device_seconds(trace) == pytest.approx({1: 5e-6, 2: 7e-6, 3: 11e-6})


spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10), st.integers(1, 2)), max_size=8)


@given(spans, st.lists(st.tuples(st.integers(0, 45), st.integers(1, 2), st.integers(0, 9)), max_size=8))
def test_joined_and_unjoined_are_all_kernels(tmp_path_factory, operators, launches):
    events = [op(f"op{i}", s, s + d, tid=t, External_id=i + 1) for i, (s, d, t) in enumerate(operators)]
    for number, (at, thread, identifier) in enumerate(launches, 1):
        events.append(call("cudaLaunchKernel", at, at + 1, tid=thread, correlation=number % 5))
        events.append(kernel(f"k{number}", 50, 51, correlation=number % 5, External_id=identifier))
    path = write(tmp_path_factory.getbasetemp() / "joins.json", [*events, event("user_annotation", "u", 0, 1)])
    joins = join(read_trace(path))
    names = [one.kernel for one in joins.joined] + [one.kernel for one in joins.unjoined]
    assert sorted(names) == sorted(f"k{number}" for number in range(1, len(launches) + 1))
    assert np.all((joins.operator != -1) == np.isin(joins.outcome.tolist(), list(How)))


def test_merged_ranks_join_as_each_rank_did(tmp_path):
    paths = [recorded(f"hta_dist_rank{rank}") for rank in (0, 1)]
    expected: dict = defaultdict(int)
    for path in paths:
        for outcome, count in join(read_trace(path)).counts.items():
            expected[outcome] += count
    merged = read_trace(merge_traces(paths, tmp_path / "both.json.gz").path)
    assert join(merged).counts == expected
