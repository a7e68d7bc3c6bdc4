"""What must hold for any record: order, scale, what is missing, and that nothing raises."""

import math
from dataclasses import replace
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st
from truths import DATA_STAGE, made

from helpers.profiling.counters.aliases import NEEDS, spellings
from helpers.profiling.counters.record import KernelRecord
from helpers.profiling.diagnosis import Confidence, Context, Host, Level, State, diagnose, nvidia_rule, rule_of_thumb
from helpers.profiling.diagnosis.verdict import STANDS_FOR
from helpers.profiling.recordings import recorded_kernels as shipped

recorded_kernels = cache(shipped)
PERCENT = st.floats(0, 100).map(lambda number: round(number, 2))
ANY = st.one_of(st.floats(), st.floats(-10, 200), st.floats(1e-7, 1e-2), st.just(math.nan))
PIPES = ("issue_percent", "fma_percent", "alu_percent", "tensor_percent", "fp64_percent", "xu_percent")
ORDER = [State.LATENCY, State.LEANING, State.BALANCED, State.SATURATED]


WAVES = st.sampled_from([0.4, 1.0, 1.3, 2.0, 7.9])


@st.composite
def records(draw, waves=WAVES):
    """Records whose totals are the maximum of their parts, as the tool's are."""
    dram, l2, data, lsu = (draw(PERCENT) for _ in range(4))
    pipes = {need: draw(PERCENT) for need in PIPES}
    stalls = {f"stall_{reason}": draw(st.floats(0, 50)) for reason in ("barrier", "wait", "lg_throttle", "selected")}
    active = draw(st.floats(0.3, 1.0))
    return made(
        duration=draw(st.floats(3e-6, 1e-1)),
        dram_percent=dram,
        l2_percent=l2,
        lsu_percent=lsu,
        memory_percent=max(dram, l2, data, lsu),
        sm_percent=max(lsu, *pipes.values()),
        waves=draw(waves),
        sm_active_cycles=active * 1e6,
        sm_elapsed_cycles=1e6,
        warp_latency=sum(stalls.values()),
        metrics={DATA_STAGE: data, "l1tex__throughput.avg.pct_of_peak_sustained_elapsed": max(data, lsu)},
        **pipes,
        **stalls,
    )


def without(record, names):
    return replace(record, metrics={name: number for name, number in record.metrics.items() if name not in names})


def more_general(new, old):
    return new is old or old in STANDS_FOR.get(new, ())


def sure_of_another(before, after, gone):
    """Whether the second verdict names another level without saying that it may be wrong."""
    tie = any("either may be the limiter" in doubt.text for doubt in before.doubts)
    tie |= any("may be as busy" in doubt.text for doubt in after.doubts)
    if tie or after.state is State.REFUSED or more_general(after.level, before.level):
        return False
    if gone & {name for need in ABOUT_IDLE_SMS for name in spellings(need)}:
        return after.confidence is Confidence.HIGH
    return True


ABOUT_IDLE_SMS = ("waves", "sm_active_cycles", "sm_elapsed_cycles", "sm_clock")


@settings(max_examples=150, deadline=None)
@given(records(), st.data())
def test_a_missing_metric_never_gives_another_level_by_accident(record, data):
    """It gives a refusal, the same level, one that stands for it, or says that it is not sure."""
    gone = data.draw(st.sets(st.sampled_from(sorted(record.metrics)), max_size=6))
    before, after = diagnose(record), diagnose(without(record, gone))
    assert not sure_of_another(before, after, gone), (sorted(gone), str(before), str(after), after.doubts)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(recorded_kernels())), st.data())
def test_recorded_kernels_without_some_metrics_are_not_taken_for_others(name, data):
    record = recorded_kernels()[name]
    decisive = sorted(metric for metric in record.metrics if "pct_of_peak" in metric or "cycles" in metric)
    gone = data.draw(st.sets(st.sampled_from(decisive), max_size=12)) if decisive else set()
    before, after = diagnose(record), diagnose(without(record, gone))
    assert not sure_of_another(before, after, gone), (sorted(gone), str(before), str(after), after.doubts)


@settings(max_examples=60, deadline=None)
@given(records(), st.data())
def test_the_order_of_the_metrics_does_not_matter(record, data):
    names = data.draw(st.permutations(sorted(record.metrics)))
    shuffled = KernelRecord(
        record.name,
        record.device,
        record.capability,
        metrics={name: record.metrics[name] for name in names},
        source=record.source,
    )
    assert diagnose(shuffled) == diagnose(record)


@settings(max_examples=60, deadline=None)
@given(records(st.just(4.0)), st.floats(1.0, 3.0))
def test_a_busier_limiter_stays_the_limiter_and_its_state_only_rises(record, factor):
    before = diagnose(record)
    if before.level is not Level.DRAM:
        return
    dram = min(100.0, record.require("dram_percent") * factor)
    busier = {spellings("dram_percent")[0]: dram, spellings("memory_percent")[0]: dram}
    after = diagnose(KernelRecord(record.name, record.device, metrics={**record.metrics, **busier}))
    assert after.level is Level.DRAM
    ranks = [
        0 if state is State.LATENCY else 2 if state is State.SATURATED else 1 for state in (before.state, after.state)
    ]
    assert ranks[0] <= ranks[1]


@settings(max_examples=60, deadline=None)
@given(st.floats(1e6, 1e12), st.floats(1e9, 1e13), st.floats(1.01, 100))
def test_scaling_the_bandwidth_scales_the_percentage_and_the_bytes_alike(moved, bandwidth, factor):
    def percent(moved, bandwidth):
        record = made(duration=1e-3, sm_percent=1, dram_bytes=moved)
        found = diagnose(record, Context(bandwidth=bandwidth))
        return found.evidence[0].value.value if found.evidence else None

    one, same = percent(moved, bandwidth), percent(moved * factor, bandwidth * factor)
    assert (one is None) == (same is None)
    assert one is None or abs(one - same) < 1e-6 * one
    higher = percent(moved, bandwidth * factor)
    assert higher is None or (one is not None and higher < one)


@settings(max_examples=60, deadline=None)
@given(records(st.just(4.0)), st.floats(1e9, 1e12), st.floats(1.0, 8.0))
def test_scaling_the_roof_and_the_work_alike_changes_nothing(record, flop, factor):
    busy = without(record, ())
    metrics = {**busy.metrics, spellings("dram_bytes")[0]: 1e6}
    record = KernelRecord(busy.name, busy.device, metrics=metrics, source=busy.source)
    one = diagnose(record, Context(bandwidth=1e15, peak=2e13, flop=flop))
    other = diagnose(record, Context(bandwidth=1e15, peak=factor * 2e13, flop=factor * flop))
    assert (one.level, one.state, one.confidence) == (other.level, other.state, other.confidence)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(NEEDS)), ANY, max_size=40), st.booleans())
def test_no_record_raises_and_every_answer_is_whole(needs, with_context):
    context = (
        Context(bandwidth=1e12, peak=1e13, flop=1e9, compulsory_bytes=1e6, tensor_rate=0.5) if with_context else None
    )
    record = made(**needs)
    found = diagnose(record, context or Context())
    assert (found.state is State.REFUSED) == bool(found.refusal) == (found.level is Level.NONE)
    assert found.refusal or found.evidence
    serious = any(doubt.serious for doubt in found.doubts)
    assert found.confidence is (Confidence.LOW if serious else Confidence.MEDIUM if found.doubts else Confidence.HIGH)
    assert all(remedy.ceiling.value >= 1 and remedy.ceiling.source for remedy in found.remedies)
    assert all(math.isfinite(item.value.value) for item in found.evidence)
    assert str(found)
    nvidia_rule(record), rule_of_thumb(record)


@settings(max_examples=60, deadline=None)
@given(records(), st.floats(0.0, 0.699), st.floats(1e-6, 1e-3))
def test_an_idle_device_decides_before_any_counter(record, busy, kernel):
    found = diagnose(record, Context(host=Host(busy, kernel, 1e-5)))
    assert found.level is Level.HOST and found.remedies[0].ceiling.value >= 1 / 0.7


@settings(max_examples=100, deadline=None)
@given(records(st.just(4.0)))
def test_a_ceiling_is_never_above_what_the_levels_that_it_leaves_alone_allow(record):
    found = diagnose(record)
    known = [record.require(need) for need in ("fp64_percent", "xu_percent")]
    if found.level in (Level.LSU, Level.DRAM, Level.L1, Level.L2):
        for remedy in found.remedies:
            assert remedy.ceiling.value <= max(1.0, 100 / max(known)) + 1e-9 if max(known) else True


def test_states_are_ordered_as_the_properties_assume():
    assert [state.value for state in ORDER] == ["latency-bound", "leaning", "balanced", "saturated"]
