"""Operators, kernels and counters: on made launches, and on two recordings of one program."""

import json
from collections import Counter
from functools import cache, lru_cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from truths import made

from helpers.profiling.counted_ranges import range_records
from helpers.profiling.counters.record import CounterError, KernelRecord, Source
from helpers.profiling.counters_flop import Agreement, counted_flop, join_table, reconcile
from helpers.profiling.counters_join import How, Launched, Why, join_counters, launched
from helpers.profiling.kernel_names import same_kernel
from helpers.profiling.trace import read_trace
from helpers.profiling.work import convolution, matmul

PROFILES = Path(__file__).parents[3] / "shared" / "profiles"
COUNTED, TIMED = "hta_a100_cupti_counters.pt.trace.json.gz", "hta_a100_alexnet.pt.trace.json.gz"


def recorded(name):
    if not (PROFILES / name).is_file():
        pytest.skip("needs the recorded traces of shared/profiles")
    return PROFILES / name


@cache
def launches_of(name):
    return launched(read_trace(recorded(name)))


@cache
def records_of(name):
    return range_records(recorded(name))


def records(names, grids=None):
    grids = grids or [()] * len(names)
    source = Source("made.ncu-rep", "ncu 2026.1", "2026-12-01")
    return tuple(KernelRecord(name, grid=grid, source=source) for name, grid in zip(names, grids))


def launches(names, grids=None):
    grids = grids or [()] * len(names)
    return tuple(
        Launched(name, f"aten::{name}", call, grid=grid) for call, (name, grid) in enumerate(zip(names, grids))
    )


def calls(found):
    return [pair.launched.call for pair in found.pairs]


def test_every_launch_of_the_counted_trace_gets_its_counters():
    """Kineto wrote one counted range a launch, in order: 77 of each, and one name was lost."""
    found = join_counters(launches_of(COUNTED), records_of(COUNTED))
    assert (len(found.pairs), found.only_trace, found.only_report) == (77, (), ())
    assert (found.how, found.places) == (How.RUN, 1)


MEANS = {  # part of a kernel's name: the operator that launches it
    "distribution_elementwise": "aten::uniform_",
    "CUDAFunctor_add": "aten::add_",
    "clamp": "aten::clamp_min_",
    "max_pool_forward": "aten::max_pool2d_with_indices",
    "adaptive_average_pool": "aten::_adaptive_avg_pool2d",
    "fused_dropout": "aten::native_dropout",
    "ampere_sgemm": "aten::addmm",
    "epilogue::impl": "aten::addmm",
    "fft2d": "aten::cudnn_convolution",
    "gcgemm": "aten::cudnn_convolution",
    "nchwToNhwc": "aten::cudnn_convolution",
    "xmma_new::implicit_gemm": "aten::cudnn_convolution",
    "implicit_convolve": "aten::cudnn_convolution",
}


@pytest.mark.parametrize("name", [COUNTED, TIMED])
def test_kernels_are_joined_to_the_operators_that_launch_such_kernels(name):
    found = join_counters(launches_of(name), records_of(COUNTED))
    seen = Counter()
    for pair in found.pairs:
        for part, operator in MEANS.items():
            if part in pair.record.name:
                assert pair.launched.operator == operator, pair.record.name
                seen[part] += 1
    assert sum(seen.values()) >= 60 and len(seen) >= 11


def test_another_recording_of_the_program_is_aligned_and_what_differs_is_listed():
    """The timed trace was made half a year later: cuDNN chose other kernels for the convolutions in between."""
    timed, counted = launches_of(TIMED), records_of(COUNTED)
    found = join_counters(timed, counted)
    assert found.how is How.ALIGNED and (len(found.pairs), len(found.only_trace), len(found.only_report)) == (
        70,
        9,
        7,
    )
    assert {why for _, why in (*found.only_trace, *found.only_report)} == {Why.NAME}
    assert {one.operator for one, _ in found.only_trace} == {"aten::cudnn_convolution"}
    own = {id(pair.record): pair.launched.operator for pair in join_counters(launches_of(COUNTED), counted).pairs}
    assert all(pair.launched.operator == own[id(pair.record)] for pair in found.pairs)


def alexnet_models():
    """FLOP of the layers in the counted trace, batch 128, by the paper's sizes; in the order of their calls."""
    conv = [
        convolution(128, 3, 64, (11, 11), (55, 55)),
        convolution(128, 64, 192, (5, 5), (27, 27)),
        convolution(128, 192, 384, (3, 3), (13, 13)),
        convolution(128, 384, 256, (3, 3), (13, 13)),
        convolution(128, 256, 256, (3, 3), (13, 13)),
    ]
    linear = [matmul(128, 9216, 4096, 4).flop, matmul(128, 4096, 4096, 4).flop, matmul(128, 4096, 1000, 4).flop]
    found = {}
    for operator, sizes in (("aten::cudnn_convolution", conv), ("aten::addmm", linear)):
        numbers = dict.fromkeys(one.call for one in launches_of(COUNTED) if one.operator == operator)
        found |= {call: sizes[at % len(sizes)] for at, call in enumerate(numbers)}
    return found


def test_model_and_counters_agree_where_threads_do_the_arithmetic():
    rows = reconcile(join_counters(launches_of(COUNTED), records_of(COUNTED)), alexnet_models())
    linear = [row for row in rows if row.operator == "aten::addmm"]
    assert [row.kernels for row in linear] == [2] * 6
    assert {row.agreement for row in linear} == {Agreement.AGREE}
    assert [round(row.ratio, 2) for row in linear] == [1.00, 1.00, 1.06] * 2
    first = next(row for row in rows if row.operator == "aten::cudnn_convolution")
    assert first.agreement is Agreement.AGREE and 1 < first.ratio < 1.02


def test_counters_that_miss_the_tensor_pipe_or_meet_an_fft_are_explained():
    """The second convolution runs as an FFT, the next three on the tensor pipe with TF32."""
    rows = reconcile(join_counters(launches_of(COUNTED), records_of(COUNTED)), alexnet_models())
    conv = [row for row in rows if row.operator == "aten::cudnn_convolution"][:5]
    assert [row.agreement for row in conv] == [Agreement.AGREE] + [Agreement.LESS] * 4
    assert 0.08 < conv[1].ratio < 0.15 and all(row.ratio < 0.005 for row in conv[2:])


def test_counted_flop_of_a_product_is_its_multiply_adds():
    """128 · 9216 · 4096, each a multiply-add of one thread, and the few operations of its epilogue."""
    gemm = next(record for record in records_of(COUNTED) if "sgemm" in record.name)
    flop, tensor = counted_flop(gemm)
    assert flop == 2 * 128 * 9216 * 4096 + 1572864 + 2097152 and not tensor


def test_a_report_of_some_kernels_is_found_in_the_trace():
    """As `ncu -k gemm -s 1 -c 3` would write it."""
    trace = launches("abgcagbg" + "gcab")
    found = join_counters(trace, records("ggg"))
    assert (found.how, found.places, calls(found)) == (How.RUN, 2, [2, 5, 7])
    assert [why for _, why in found.only_trace] == [Why.NAME, Why.NAME, Why.NAME, Why.NAME, Why.NAME, Why.COUNT] + [
        Why.NAME
    ] * 3


def test_repeated_steps_fit_in_several_places_and_the_first_is_taken():
    found = join_counters(launches("abcabcabc"), records("abc"))
    assert (found.how, found.places, calls(found)) == (How.RUN, 3, [0, 1, 2])


def test_grids_choose_among_equal_names():
    grids = [(8, 1, 1), (16, 1, 1), (32, 1, 1)]
    found = join_counters(launches("fff", grids), records("f", grids[1:2]))
    assert (found.how, calls(found)) == (How.RUN, [1])
    other = join_counters(launches("ff", grids[:2]), records("f", grids[2:]))
    assert other.pairs == () and [why for _, why in other.only_report] == [Why.COUNT]


def test_a_range_name_chooses_among_equal_launches():
    trace = tuple(Launched("f", call=at, within=name) for at, name in enumerate(("warmup", "forward", "backward")))
    assert calls(join_counters(trace, records("f"), within=("backward",))) == [2]
    with pytest.raises(CounterError, match="2 range names for 1 records"):
        join_counters(trace, records("f"), within=("a", "b"))


def test_nothing_and_everything_foreign():
    empty = join_counters((), ())
    assert (empty.pairs, empty.only_trace, empty.only_report) == ((), (), ())
    assert len(join_counters(launches("ab"), ()).only_trace) == 2
    foreign = join_counters(launches("ab"), records("xy"))
    assert foreign.pairs == () and {why for _, why in foreign.only_report} == {Why.NAME}


def test_a_template_that_differs_is_named():
    found = join_counters(launches(["void f<4>(int)"]), records(["void f<(int)8>(int)"]))
    assert found.pairs == () and found.only_report[0][1] is Why.SHAPE


def test_too_many_pairs_are_refused():
    with pytest.raises(CounterError, match="too many to align"):
        join_counters(launches(["f"]) * 5000, records(["f"]) * 5000)


@pytest.mark.parametrize(
    ("kineto", "ncu", "same"),
    [
        ("gemm", "gemm", True),
        ("void f<4, true>(float*)", "void f<(int)4, (bool)1>(float *)", True),
        ("void f<4, false>(float*)", "void f<(int)4, (bool)1>(float *)", False),
        (
            "void at::native::(anonymous namespace)::g<4ul>(T)",
            "void at::native::<unnamed>::g<(unsigned long)4>(T1)",
            True,
        ),
        ("void a::f<float>(T)", "f", True),
        ("void a::f<float>(T)", "void a::f<half>(T)", False),
        ("f(int)", "g(int)", False),
        ("", "anything", True),
        ("operator_kernel", "operator_kernel(int)", True),
        ("void f<float, 32>(float)", "void f<float, (int)32>(float)", True),
        ("cutlass::Kernel<A>(P)", "cutlass::Kernel2<A>(P)", False),
    ],
)
def test_spellings_of_one_name(kineto, ncu, same):
    assert same_kernel(kineto, ncu) is same and same_kernel(ncu, kineto) is same


NAMES = st.lists(st.sampled_from("abc"), max_size=9)


@settings(max_examples=150, deadline=None)
@given(NAMES, NAMES)
def test_both_sides_are_whole_and_in_order(trace, report):
    ours, theirs = launches(trace), records(report)
    found = join_counters(ours, theirs)
    assert sorted([*calls(found), *(one.call for one, _ in found.only_trace)]) == list(range(len(trace)))
    assert len(found.pairs) + len(found.only_report) == len(report)
    assert calls(found) == sorted(calls(found)) and all(p.launched.kernel == p.record.name for p in found.pairs)
    assert len(found.pairs) == common(tuple(trace), tuple(report))


@lru_cache
def common(one, other):
    """Length of the longest common subsequence, by its definition."""
    if not one or not other:
        return 0
    if one[0] == other[0]:
        return 1 + common(one[1:], other[1:])
    return max(common(one[1:], other), common(one, other[1:]))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=30), st.data())
def test_a_filtered_window_is_found_again(trace, data):
    """ncu with -k, -s and -c: launches of some names, from one on, so many."""
    kept = data.draw(st.sets(st.sampled_from(trace), min_size=1))
    rows = [at for at, name in enumerate(trace) if name in kept]
    skip = data.draw(st.integers(0, len(rows) - 1))
    rows = rows[skip : skip + data.draw(st.integers(1, len(rows)))]
    found = join_counters(launches(trace), records([trace[at] for at in rows]))
    assert found.how is How.RUN and len(found.pairs) == len(rows) and found.only_report == ()
    if found.places == 1 and set(trace[at] for at in rows) == kept:
        assert calls(found) == rows


def product(call, flop=None, **counts):
    clocked = {"sm_clock": 1e9, "duration": 1e-3} | counts
    record = made("gemm", **clocked)
    return Launched("gemm", "aten::mm", call, flop=flop), record


def joined(*pairs):
    return join_counters([one for one, _ in pairs], [record for _, record in pairs])


@pytest.mark.parametrize(
    ("ratio", "agreement"),
    [
        (0.89, Agreement.FEWER),
        (0.91, Agreement.AGREE),
        (1.0, Agreement.AGREE),
        (1.09, Agreement.AGREE),
        (1.11, Agreement.MORE),
    ],
)
def test_agreement_turns_at_ten_percent(ratio, agreement):
    """ffma a cycle · clock · duration · 2, and a tensor pipe that was seen idle."""
    row = reconcile(joined(product(0, 2e9, ffma_per_cycle=ratio * 1000, tensor_percent=0)))[0]
    assert row.ratio == pytest.approx(ratio) and row.agreement is agreement


def test_fewer_flop_beside_a_busy_tensor_pipe_are_no_contradiction():
    row = reconcile(joined(product(0, 2e9, ffma_per_cycle=1, tensor_percent=60)))[0]
    assert row.agreement is Agreement.LESS and row.model.origin == "predicted" and row.counted.origin == "recorded"


def test_tensor_operations_count_once():
    """The total and its split by sparsity hold the same operations."""
    one = "sm__ops_path_tensor_src_bf16_dst_fp32"
    split = {f"{one}_sparsity_off.sum": 8e9, f"{one}_sparsity_on.sum": 0.0}
    assert counted_flop(KernelRecord("k", metrics=split | {f"{one}.sum": 8e9})) == (8e9, True)
    assert counted_flop(KernelRecord("k", metrics=split)) == (8e9, True)


def test_without_counter_or_model_nothing_is_claimed():
    rows = reconcile(joined(product(0, 1e9), product(1, None, ffma_per_cycle=1)))
    assert [row.agreement for row in rows] == [Agreement.NOT_COUNTED, Agreement.NO_MODEL]
    assert [row.ratio for row in rows] == [None, None]


def test_a_call_with_an_uncounted_kernel_is_left_out():
    half = (Launched("a", "aten::mm", 0, flop=1e9), Launched("b", "aten::mm", 0, flop=1e9))
    assert reconcile(join_counters(half, records("a"))) == ()


def test_the_table_lists_pairs_and_what_has_none():
    table = join_table(join_counters(launches("ab"), records("ac")))
    assert [row[:2] for row in table.rows] == [("aten::a", "a"), ("aten::b", "b"), ("–", "c")]
    assert "only in the trace" in table.rows[1][4] and "only in the report" in table.rows[2][4]


def test_slowdown_compares_the_two_durations():
    pair = join_counters((Launched("k", seconds=1e-3),), (made("k", duration=2e-3),)).pairs[0]
    assert pair.slowdown == pytest.approx(2) and join_counters(launches("a"), records("a")).pairs[0].slowdown is None


RANGE = {"ph": "X", "cat": "cuda_profiler_range", "name": "k", "ts": 1, "dur": 1, "args": {"smsp__x.sum": 4}}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[",
        b"[]",
        b"{}",
        b'{"traceEvents": 3}',
        b'{"traceEvents": [{}]}',
        b"\x1f\x8b\x00",
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_what_holds_no_range_is_named(tmp_path, content):
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(CounterError) as caught:
        range_records(path)
    assert str(path) in caught.value.where and caught.value.mend


def test_an_absent_file_is_named(tmp_path):
    with pytest.raises(CounterError, match="cannot be read"):
        range_records(tmp_path / "none.json")


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["name", "ts", "args", "cat", "dur"]),
        st.one_of(
            st.none(), st.text(max_size=3), st.integers(), st.just([]), st.just({"a__b": "c", "d__e": 1, "f": True})
        ),
    )
)
def test_any_range_gives_a_record_or_a_named_error(tmp_path_factory, change):
    path = tmp_path_factory.mktemp("range") / "t.json"
    path.write_text(json.dumps({"traceEvents": [RANGE, RANGE | change]}))
    found = range_records(path)
    assert len(found) == (2 if change.get("cat", RANGE["cat"]) == RANGE["cat"] else 1)
