"""Unseen kernels, counter-examples and joins: what is drawn is possible, and its truth is known by other means."""

import ast
import inspect
import math
from copy import deepcopy
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from helpers.course.exercise import Symptom
from helpers.course.exercises.profiling import break_rule, diagnose, join, join_program, unseen
from helpers.course.exercises.profiling.altered import ALTERED, longer, on_blocks, waiting, with_levels, without
from helpers.measure import Origin
from helpers.profiling.counters.aliases import spellings
from helpers.profiling.counters_join import Launched, join_counters, launched
from helpers.profiling.diagnosis import Level, RuleOfThumb, State, rule_of_thumb
from helpers.profiling.diagnosis import diagnose as classify
from helpers.profiling.diagnosis.evidence import active_share, dram_bytes, stalls, tail_efficiency, uses_of
from helpers.profiling.joins import join as join_trace
from helpers.profiling.kernel_names import same_kernel
from helpers.profiling.recordings import recorded_kernel, recorded_kernels, recorded_trace
from helpers.profiling.trace import read_trace

PROFILES = Path(__file__).parents[3] / "shared" / "profiles"
SEEDS = range(25)
MADE = {  # by hand: what each way of altering a kernel makes of it
    Level.NONE: State.REFUSED,
    Level.GRID: State.IDLE_SMS,
    Level.TAIL: State.IDLE_SMS,
    Level.LATENCY: State.LATENCY,
}


def solution_of(identifier):
    from test_mutants import solution_of as find

    imports, source = find(identifier)
    names = {}
    exec(imports, names)
    before = set(names)
    exec(source, names)
    [answer] = [names[name] for name in names.keys() - before]
    return answer


# Unseen kernels.


@pytest.mark.parametrize("seed", SEEDS)
def test_every_kind_of_limiter_is_among_the_twelve_and_is_what_was_drawn(seed):
    cases = unseen.draw(seed)
    levels = [case.drawn[0] for case in cases]
    assert len(cases) == 12 and levels.count(Level.NONE) == 2 and levels.count(Level.LATENCY) == 2
    assert {Level.DRAM, Level.L1, Level.L2, Level.LSU, Level.GRID, Level.TAIL} <= set(levels)
    for case in cases:
        level, state, word = case.drawn
        found = classify(case.record)
        assert found.level is level and found.state is state
        assert state is MADE.get(level, state) and (level is not Level.LATENCY or found.stall == word)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_altered_kernel_could_exist(seed):
    for case in unseen.draw(seed):
        if case.drawn[1] is not State.REFUSED and case.record.breakdowns:
            assert break_rule.impossible(case.record) == ""
            shares = [share for _, _, share in stalls(case.record)]
            assert sum(shares) <= 1 + 1e-6


def test_names_rules_and_origins_are_hidden_and_the_stamp_says_altered():
    for case in (case for seed in SEEDS for case in unseen.draw(seed)):
        record = case.record
        assert record.name.startswith("kernel ") and not (record.rules or record.what or record.source.origin)
        known = [one for one in recorded_kernels().values() if one.metrics == record.metrics]
        assert known or ALTERED in record.source.tool
        if math.isfinite(record.get("duration") or math.nan):
            quantity = record.quantity("duration")
            assert quantity.origin is Origin.RECORDED and (known or ALTERED in quantity.stamp)


def test_a_seed_repeats_and_another_one_does_not():
    one, same, other = (unseen.unseen_kernels(seed) for seed in (3, 3, 4))
    assert [record.device for record in one] == [record.device for record in same]
    assert list(map(repr, one)) == list(map(repr, same)) != list(map(repr, other))


def test_few_kernels_of_the_pool_are_found_among_the_shipped_ones():
    shipped = [list(map(repr, record.metrics.items())) for record in recorded_kernels().values()]
    drawn = [case.record for seed in SEEDS for case in unseen.draw(seed)]
    plain = sum(list(map(repr, record.metrics.items())) in shipped for record in drawn)
    assert plain < 0.1 * len(drawn)


# Altering.


def test_totals_follow_their_parts_and_bytes_follow_dram():
    base = recorded_kernel("rtx3090_gemm_coalesced")
    made = with_levels(base, {Level.DRAM: 90.0, Level.LSU: 20.0, Level.ISSUE: 30.0, Level.TENSOR: 44.0})
    uses = {use.level: use.percent for use in uses_of(made)}
    assert (uses[Level.DRAM], uses[Level.LSU], uses[Level.TENSOR]) == pytest.approx((90.0, 20.0, 44.0))
    assert made.get("memory_percent") == pytest.approx(90) and made.get("dram_percent") == pytest.approx(90)
    assert made.get("sm_percent") == pytest.approx(max(44.0, uses[Level.ALU]))
    assert dram_bytes(made) / dram_bytes(base) == pytest.approx(90.0 / base.get("dram_percent"))
    assert break_rule.impossible(made) == "" and break_rule.impossible(base) == ""


def test_the_record_that_is_altered_stays_as_it_was():
    base = recorded_kernel("a40_stream_store")
    before = deepcopy(base)
    longer(base, 2.0), waiting(base, 3.0, "barrier"), on_blocks(base, 40), with_levels(base, {Level.L2: 90.0})
    assert base == before


def test_twice_the_work_takes_twice_the_time_at_the_same_rates():
    base = recorded_kernel("a40_stream_store")
    made = longer(base, 2.0)
    assert made.require("duration") == pytest.approx(2 * base.require("duration"))
    assert dram_bytes(made) == pytest.approx(2 * dram_bytes(base))
    for record in (base, made):
        rate = record.require("dram_bytes_per_second")
        assert dram_bytes(record) / record.require("duration") == pytest.approx(rate, rel=0.01)
    assert active_share(made) == pytest.approx(active_share(base))
    assert [use.percent for use in uses_of(made)] == [use.percent for use in uses_of(base)]


def test_waiting_stretches_the_time_and_lengthens_one_stall_only():
    base = recorded_kernel("rtx3090_gemm_coalesced")
    made = waiting(base, 3.0, "barrier")
    assert uses_of(made)[0].percent == pytest.approx(uses_of(base)[0].percent / 3)
    assert made.require("dram_bytes_per_second") * 3 == pytest.approx(base.require("dram_bytes_per_second"))
    before = {reason: cycles for reason, cycles, _ in stalls(base)}
    after = {reason: cycles for reason, cycles, _ in stalls(made)}
    growth = {reason: after[reason] - before[reason] for reason in before}
    assert growth.pop("barrier") == pytest.approx(2 * base.require("warp_latency"))
    assert set(growth.values()) == {0.0}
    assert made.require("warp_latency") == pytest.approx(3 * base.require("warp_latency"))


@pytest.mark.parametrize("blocks", [16, 80, 100, 160, 300])
def test_other_blocks_make_other_waves_in_whole_waves_of_time(blocks):
    base = recorded_kernel("a10g_sgemm_coalesced")  # one block an SM: 12.8 waves of 80
    made = on_blocks(base, blocks)
    assert made.require("waves") == pytest.approx(blocks / 80) and made.grid == (blocks, 1, 1)
    assert made.require("duration") / base.require("duration") == pytest.approx(math.ceil(blocks / 80) / 13)
    full = min(1.0, blocks / 80) if blocks < 80 else tail_efficiency(blocks / 80)
    assert active_share(made) == pytest.approx(full, rel=1e-3)


def test_without_takes_a_total_with_its_parts():
    made = without(recorded_kernel("a40_stream_store"), ("memory_percent",))
    assert made.get("memory_percent") is None and made.breakdown("memory_percent") == ()


# The diagnosis.


def test_the_menu_is_the_classifiers_own_list():
    for record in recorded_kernels().values():
        found = classify(record)
        for remedy in found.remedies:
            if found.state in (State.SATURATED, State.LEANING, State.BALANCED):
                assert remedy.what in {one.what for one in diagnose.MENU.values()}
    helped = [level for one in diagnose.MENU.values() for level in one.helps]
    assert set(helped) == set(Level) - {Level.HOST, Level.L1_OR_LSU, Level.MEMORY, Level.SM}


def test_evidence_may_go_by_any_of_its_names():
    right = solution_of("profiling.6")

    def by_need(record):
        reading = right(record)
        if reading.limiter in diagnose.NEED_OF:
            names = [diagnose.NEED_OF[reading.limiter], "duration"]
            return replace(reading, evidence={name: record.get(name) for name in names})
        return reading

    assert [diagnose.examine_diagnosis(by_need, seed) for seed in range(4)] == [None] * 4


def test_more_evidence_and_other_remedies_of_the_limiter_are_welcome():
    right = solution_of("profiling.6")

    def halves(record):
        reading = right(record)
        if reading.limiter is Level.DRAM:
            return replace(reading, remedy="half the bytes", gain=min(2.0, reading.gain))
        return replace(
            reading, evidence={**reading.evidence, "waves": record.get("waves")} if reading.evidence else {}
        )

    assert [diagnose.examine_diagnosis(halves, seed) for seed in range(4)] == [None] * 4


@pytest.mark.parametrize(("factor", "symptom"), [(1.2, Symptom.ABOVE_ROOF), (0.85, Symptom.VALUE), (1.05, None)])
def test_a_gain_lies_in_a_band_around_the_ceiling(factor, symptom):
    right = solution_of("profiling.6")

    def scaled(record):
        reading = right(record)
        return reading if reading.limiter is Level.NONE else replace(reading, gain=reading.gain * factor)

    found = diagnose.examine_diagnosis(scaled, 5)
    assert (found and found.symptom) == symptom


@pytest.mark.parametrize("module", [break_rule, join])
def test_findings_never_quote_the_truth(module):
    """A text of a finding is made from the answer and the input: the truth stands in no f-string."""
    tree = ast.parse(inspect.getsource(module))
    names = {
        node.id
        for text in ast.walk(tree)
        if isinstance(text, ast.JoinedStr)
        for node in ast.walk(text)
        if isinstance(node, ast.Name)
    }
    assert not names & {"truth", "true", "ceiling", "can_exist"}


@pytest.mark.parametrize("seed", range(6))
def test_a_wrong_reading_is_not_told_the_right_one(seed):
    right = solution_of("profiling.6")
    cases = {case.record.name: case for case in unseen.draw(seed)}

    def limiter(record):
        reading = right(record)
        return reading if reading.limiter is Level.NONE else replace(reading, limiter=Level.XU)

    def remedy(record):
        reading = right(record)
        return reading if reading.limiter is Level.NONE else replace(reading, remedy="polynomials")

    def gain(record):
        reading = right(record)
        return reading if reading.limiter is Level.NONE else replace(reading, gain=1e6)

    for answer in (limiter, remedy, gain):
        found = diagnose.examine_diagnosis(answer, seed)
        name = " ".join(found.saw.split()[:2])
        true = right(cases[name].record)
        told = f"{found.property} {found.saw.partition(':')[2]}"
        if answer is limiter:
            assert str(true.limiter) not in told
        assert true.remedy not in told or answer is gain
        assert f"{true.gain:.2f}" not in told and f"{true.gain:.3g} " not in told


def test_an_exception_and_an_untouched_answer_pass_through():
    def missing(*_):
        raise NotImplementedError("not yet")

    def broken(*_):
        raise ZeroDivisionError("theirs")

    for examine in (diagnose.examine_diagnosis, break_rule.examine_counterexample, join.examine_join):
        with pytest.raises(NotImplementedError):
            examine(missing, 0)
        with pytest.raises(ZeroDivisionError, match="theirs"):
            examine(broken, 0)


def test_a_sheet_shows_what_is_there():
    told = str(diagnose.sheet(recorded_kernel("rtx3090_gemm_uncoalesced")))
    assert "L1, by l1tex__data_pipe_lsu_wavefronts" in told and "stall lg_throttle" in told and "98.5 %" in told
    assert "not collected" in str(diagnose.sheet(recorded_kernel("rtx5070_saxpy")))
    assert len(diagnose.menu_table().rows) == len(diagnose.MENU)


# Counter-examples.


@pytest.mark.parametrize("name", break_rule.BASES)
def test_what_can_exist_is_found_by_brute_force(name):
    base = recorded_kernel(name)
    quiet = dict.fromkeys(break_rule.LIMITERS, 4.0)
    found = set()
    for limiter, top in product(break_rule.LIMITERS, (65.0, 95.0)):
        for other, percent in product((Level.DRAM, Level.ISSUE), (4.0, 30.0, 55.0, 78.0)):
            made = with_levels(base, quiet | {other: percent} | {limiter: top})
            if classify(made).level is limiter:
                found.add((rule_of_thumb(made), limiter))
    for limiter in break_rule.LIMITERS:
        made = with_levels(base, quiet | {Level.DRAM: 55.0, Level.ISSUE: 30.0} | {limiter: 95.0})
        found.add((rule_of_thumb(made), limiter))
    expected = {pair for pair in product(RuleOfThumb, break_rule.LIMITERS) if break_rule.can_exist(*pair)}
    assert found == expected and len(expected) == 18


def test_records_that_were_measured_are_possible():
    for name, record in recorded_kernels().items():
        assert (break_rule.impossible(record) == "") == (not record.failed), name


@pytest.mark.parametrize("need", ["sm_percent", "memory_percent", "dram_percent"])
def test_a_total_without_its_parts_is_impossible(need):
    base = recorded_kernel("a40_stream_store")
    for percent in (50.0, 99.0):
        if abs(base.get(need) - percent) > 1:
            forged = replace(base, metrics={**base.metrics, spellings(need)[0]: percent})
            assert need in break_rule.impossible(forged)


def test_two_counters_of_one_unit_must_agree():
    base = recorded_kernel("a40_stream_store")
    name = "l1tex__lsuin_requests.avg.pct_of_peak_sustained_elapsed"
    assert "LSU" in break_rule.impossible(replace(base, metrics={**base.metrics, name: 90.0}))


def test_what_misleads_is_what_the_lesson_says():
    told = {name: break_rule.misleads(record) for name, record in recorded_kernels().items()}
    assert {name for name, how in told.items() if how == "wrong"} == {
        "a10g_sgemm_coalesced",
        "a10g_sgemm_shared",
        "a10g_sparse_shared",
        "rtx3090_gemm_coalesced",
    }
    assert told["rtx3090_gemm_uncoalesced"] == "silent" and told["a40_stream_store"] == ""
    assert told["a10g_sgemm_failed"] == ""


# The join.


@pytest.mark.parametrize("seed", SEEDS)
def test_the_truth_of_a_program_agrees_with_its_own_correlations(seed):
    """By the trace alone: name and grid fit, each kernel once, in the order of launches, the operator around it."""
    for case in join.cases(seed):
        program = case.program
        calls = {one.correlation: one for one in program.launches}
        starts = []
        assert len(case.truth) == len(program.report) > 0
        for record, (at, operator) in zip(program.report, case.truth):
            if at is None:
                assert operator is None and all(kernel.name != record.name for kernel in program.kernels)
                continue
            kernel = program.kernels[at]
            assert kernel.grid == record.grid and same_kernel(kernel.name, record.name)
            launch = calls[kernel.correlation]
            starts.append((launch.start, kernel.start))
            around = [one for one in program.operators if one.thread == launch.thread]
            around = [one for one in around if one.start <= launch.start <= one.end]
            if launch.call == join.GRAPH:
                assert operator is None
            elif operator is None:
                assert around == []
            else:
                assert program.operators[operator] is max(around, key=lambda one: one.start)
        assert starts == sorted(starts) and len(set(starts)) == len(starts)


@pytest.mark.parametrize("seed", range(8))
def test_the_courses_own_join_says_the_same(seed):
    """Kernels by `join_counters`, on the same launches in order."""
    for case in join.cases(seed):
        program = case.program
        calls = {one.correlation: one.start for one in program.launches}
        order = sorted(program.kernels, key=lambda one: (calls[one.correlation], one.start))
        launches = [launch_of(kernel) for kernel in order]
        found = join_counters(launches, program.report)
        places = {id(pair.record): order[launches.index(pair.launched)] for pair in found.pairs}
        for record, (at, _) in zip(program.report, case.truth):
            assert places.get(id(record)) == (None if at is None else program.kernels[at])


def launch_of(kernel):
    return Launched(kernel.name, call=kernel.correlation, grid=kernel.grid, seconds=float(kernel.start))


def test_the_solution_gives_each_kernel_of_a_real_trace_the_operator_of_its_external_id():
    trace = recorded_trace("h100_bert_small").trace
    plain = join.program_of(trace, ())
    starts = {launch.correlation: launch.start for launch in plain.launches}
    order = sorted(plain.kernels, key=lambda kernel: starts[kernel.correlation])
    report = [replace(recorded_kernel("a40_stream_store"), name=one.name, grid=one.grid) for one in order]
    program = join.program_of(trace, report)
    pairs = solution_of("profiling.9")(program)
    assert [program.kernels[at] for at, _ in pairs] == order
    theirs = sorted((round(1e9 * one.start), one.operator) for one in join_trace(trace).joined)
    assert sorted((program.kernels[at].start, program.operators[of].name) for at, of in pairs) == theirs


def test_the_solution_joins_a_published_trace_without_fitting_ids():
    path = PROFILES / "hta_a100_alexnet.pt.trace.json.gz"
    if not path.is_file():
        pytest.skip("needs the recorded traces of shared/profiles")
    trace = read_trace(path)
    program = join.program_of(trace, ())
    calls = {one.correlation: one for one in program.launches}
    known = [one for one in program.kernels if one.correlation in calls]
    order = sorted(known, key=lambda one: (calls[one.correlation].start, one.start))
    report = [replace(recorded_kernel("a40_stream_store"), name=one.name, grid=one.grid) for one in order]
    program = replace(program, kernels=tuple(known), report=tuple(report))
    pairs = solution_of("profiling.9")(program)
    joins = join_trace(trace)
    own = {
        (joins.kernels.name[row], int(joins.kernels.start[row])): joins.operators.name[of] if of >= 0 else None
        for row, of in enumerate(joins.operator)
    }
    assert len(pairs) == len(order) == 79
    for at, of in pairs:
        kernel = program.kernels[at]
        assert own[kernel.name, kernel.start] == (None if of is None else program.operators[of].name)


def test_a_made_trace_is_read_whole_and_joined(tmp_path):
    records = [recorded_kernel(name) for name in ("a100_random_normal", "a100_square_triton", "a100_reduce")]
    trace = read_trace(join_program.write_trace(tmp_path / "t.json", join_program.square_program(*records)))
    assert len(trace.columns.kernels) == 14 and len(trace.columns.launches) == 14
    found = join_counters(launched(trace), records)
    assert [pair.launched.operator for pair in found.pairs] == ["aten::normal_", "", "aten::all"]
    assert (found.places, len(found.only_trace), found.only_report) == (2, 11, ())


def test_examining_takes_a_moment():
    """Not a time, but the amount of work: how often an answer is asked."""
    asked = []
    right = {number: solution_of(f"profiling.{number}") for number in (6, 7, 9)}
    examines = {6: diagnose.examine_diagnosis, 7: break_rule.examine_counterexample, 9: join.examine_join}
    for number, examine in examines.items():
        calls = []
        assert examine(lambda *inputs, n=number, c=calls: c.append(1) or right[n](*inputs), 1) is None
        asked.append(len(calls))
    assert asked == [12, 48, 10]
