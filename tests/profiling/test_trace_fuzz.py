"""Whatever the file holds: the whole trace or a TraceError, and both decoders read the same."""

import gzip
import json
import random
from contextlib import suppress
from dataclasses import fields

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from trace_kit import recorded

from helpers.profiling import kineto
from helpers.profiling.breakdown import BreakdownError, breakdown
from helpers.profiling.columns import Columns, Memory
from helpers.profiling.health import health
from helpers.profiling.joins import join
from helpers.profiling.kineto import TraceError, read_columns
from helpers.profiling.trace import read_trace

FLIPS = {"hta_a100_alexnet": 40, "tracelens_h100_bert_small": 15, "tracelens_mi300x_compile_triton": 200}


def everything(path):
    """All that was read, as plain values, or "TraceError"."""
    try:
        columns, header = read_columns(path)
    except TraceError as error:
        assert error.mend and str(path) in error.where
        return "TraceError"
    found = {one.name: getattr(columns, one.name).tolist() for one in fields(Columns) if one.name != "memory"}
    return header, found, {one.name: getattr(columns.memory, one.name).tolist() for one in fields(Memory)}


def without_msgspec(path):
    """The same through `json` alone."""

    def refuse(data, path):
        raise msgspec.DecodeError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kineto, "_fast", refuse)
        return everything(path)


def plain(data):
    """Name, category and nanoseconds of the intervals, by `json` and nothing of ours; None for no JSON."""
    try:
        events = json.loads(data.decode(), strict=False)["traceEvents"]
        return sorted(
            (str(e["name"]), str(e.get("cat", "")), round(1000 * e["ts"]), round(1000 * e["dur"]))
            for e in events
            if e.get("ph") == "X"
        )
    except (ValueError, KeyError, TypeError):
        return None


def read(path):
    """Name, category and nanoseconds of what we read, or None for a TraceError; all analyses must survive it."""
    try:
        trace = read_trace(path)
    except TraceError:
        return None
    columns = trace.columns
    joins = join(trace)
    assert sum(joins.counts.values()) == len(columns.kernels)
    health(trace)
    trace.operators()
    with suppress(BreakdownError):
        breakdown(trace)
    rows = zip(columns.name.tolist(), columns.category.tolist(), columns.start.tolist(), columns.duration.tolist())
    return sorted(rows)


@pytest.mark.parametrize("name", FLIPS)
def test_a_flipped_bit_leaves_every_event_or_is_an_error(tmp_path, name):
    whole = gzip.decompress(recorded(name).read_bytes())
    count = len(plain(whole))
    chance = random.Random(name)
    path = tmp_path / "t.json"
    for _ in range(FLIPS[name]):
        data = bytearray(whole)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        found = read(path)
        assert found is None or (found == plain(bytes(data)) and len(found) == count)


def test_a_flipped_bit_in_a_phase_loses_no_event(tmp_path):
    """`"ph": "X"` is what makes an interval of an event: every bit of it, one after the other."""
    whole = gzip.decompress(recorded("tracelens_mi300x_compile_triton").read_bytes())
    first = whole.index(b'"ph": "X"')
    path = tmp_path / "t.json"
    for place in range(first, first + len(b'"ph": "X"')):
        for bit in range(8):
            data = bytearray(whole)
            data[place] ^= 1 << bit
            path.write_bytes(data)
            found = read(path)
            assert found is None or len(found) == len(plain(whole))


@pytest.mark.parametrize("name", FLIPS)
def test_a_cut_file_is_an_error_packed_or_not(tmp_path, name):
    packed = recorded(name).read_bytes()
    whole = gzip.decompress(packed).rstrip()
    chance = random.Random(name)
    path = tmp_path / "t.json"
    for data in (packed, whole):
        for end in [chance.randrange(len(data)) for _ in range(FLIPS[name] // 4)] + [len(data) - 1, len(data) - 2]:
            path.write_bytes(data[:end])
            with pytest.raises(TraceError):
                read_trace(path)


def test_a_flipped_bit_in_a_packed_file_changes_nothing_or_is_an_error(tmp_path):
    packed = recorded("tracelens_mi300x_compile_triton").read_bytes()
    path = tmp_path / "t.json.gz"
    expected = plain(gzip.decompress(packed))
    chance = random.Random(1)
    for place in [*range(20), *(chance.randrange(len(packed)) for _ in range(150))]:
        data = bytearray(packed)
        data[place] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        assert read(path) in (None, expected)


numbers = st.one_of(
    st.integers(-5, 10**16), st.floats(allow_nan=True, allow_infinity=True), st.integers(2**63 - 1, 2**70), st.none()
)
words = st.one_of(
    st.text(max_size=3), st.sampled_from(["cpu_op", "kernel", "[memory]", "aten::mm", "\x01", "\ud800"])
)
anything = st.one_of(numbers, words, st.booleans(), st.lists(st.integers(-2, 5), max_size=3), st.just({}))
arguments = st.dictionaries(
    st.sampled_from([one.encode_name for one in msgspec.structs.fields(kineto._Args)]),
    st.one_of(anything, st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=2)),
    max_size=4,
)
good = st.fixed_dictionaries(
    {
        "ph": st.just("X"),
        "name": words.filter(bool),
        "cat": words.filter(bool),
        "ts": st.floats(0, 1e9),
        "dur": st.floats(0, 1e6),
    },
    optional={"pid": st.integers(0, 3), "tid": st.integers(0, 3), "args": arguments},
)
odd = st.dictionaries(st.sampled_from(["ph", "name", "cat", "ts", "dur", "pid", "tid", "args"]), anything, max_size=8)
instants = st.fixed_dictionaries(
    {"ph": st.sampled_from("iMsfXQ"), "name": st.just("[memory]"), "ts": numbers}, optional={"args": arguments}
)
contents = st.one_of(
    st.fixed_dictionaries(
        {"traceEvents": st.lists(st.one_of(good, good, good, instants, odd), max_size=5)},
        optional={"distributedInfo": anything, "deviceProperties": anything},
    ),
    anything,
)


@given(contents, st.booleans())
def test_both_decoders_give_the_same_records_or_the_same_refusal(tmp_path_factory, content, escaped):
    path = tmp_path_factory.getbasetemp() / "both.json"
    path.write_bytes(json.dumps(content, ensure_ascii=escaped).encode("utf-8", "surrogatepass"))
    assert repr(everything(path)) == repr(without_msgspec(path))


UNSIGNED = {key: 2**63 for key in ("External id", "correlation", "Sequence number", "bytes", "In msg nelems", "Addr")}
UNSIGNED_EVENT = {"ph": "X", "name": "f", "cat": "kernel", "ts": 1.0, "dur": 1.0, "args": UNSIGNED}


@given(st.lists(good, min_size=1, max_size=6))
@example([UNSIGNED_EVENT, UNSIGNED_EVENT | {"args": {"External id": -(2**63) - 1, "bytes": 2**64}}])
def test_good_events_are_all_read(tmp_path_factory, events):
    path = tmp_path_factory.getbasetemp() / "good.json"
    path.write_text(json.dumps({"traceEvents": events}))
    assert len(read(path)) == len(events)


@given(st.binary(max_size=60))
def test_bytes_that_are_no_trace_are_an_error(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "bytes.json"
    path.write_bytes(data)
    with pytest.raises(TraceError):
        read_trace(path)


def test_control_characters_and_nan_are_read_through_json(tmp_path):
    """As Kineto writes them: a raw control character in a name, NaN in an argument."""
    path = recorded("tracelens_h100_bert_small")
    clean = gzip.decompress(path.read_bytes())
    dirty = clean.replace(b"aten::addmm", b"aten::\x01addmm").replace(
        b'"correlation": 8198', b'"x": NaN, "correlation": 8198'
    )
    assert b"NaN" in dirty
    target = tmp_path / "t.json"
    target.write_bytes(dirty)
    found = read_trace(target)
    assert "aten::\x01addmm" in found.columns.operators.name.values
    assert read(target) == plain(dirty) and len(found.events) == len(read_trace(path).events)
