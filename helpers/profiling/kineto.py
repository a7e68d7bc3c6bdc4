"""Kineto's JSON into columns, without an object per event: most of a million are never looked at singly.

msgspec decodes one event after the other into a small struct that lives until its numbers are appended.
Whatever it refuses (raw control characters in names, NaN, a number where a word belongs) goes through
`json` instead, which gives the same columns or a `TraceError`.
"""

import gzip
import json
import math
import zlib
from array import array
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from helpers.errors import CourseError
from helpers.profiling.columns import Coded, Columns, Memory

AGAIN = "capture it again, and read it when the profiler has closed"
SIZES = {
    "float": 4,
    "double": 8,
    "c10::Half": 2,
    "half": 2,
    "c10::BFloat16": 2,
    "bfloat16": 2,
    "int": 4,
    "long": 8,
    "long int": 8,
    "unsigned char": 1,
    "byte": 1,
    "char": 1,
    "bool": 1,
}
WITHOUT_LENGTH = frozenset("iIMstfC")  # instants, metadata, flow arrows and counters
LONGEST_MICROSECONDS = 4e15  # 127 years: what int64 nanoseconds hold twice
EMPTY = msgspec.Raw(b"")
Whole = Annotated[int, msgspec.Meta(le=2**63 - 1)]  # msgspec alone lets uint64 through
CHUNK = 1 << 22


class TraceError(CourseError):
    """A file that is not a whole torch trace."""


@dataclass(frozen=True)
class Header:
    """What stands around the events. devices: names of the GPUs, () where they were not recorded."""

    rank: int
    world: int
    devices: tuple[str, ...]


class _Args(msgspec.Struct, frozen=True, gc=False):
    external_id: Whole = msgspec.field(default=0, name="External id")
    correlation: Whole = 0
    sequence: Whole = msgspec.field(default=-1, name="Sequence number")
    shapes: msgspec.Raw = msgspec.field(default=EMPTY, name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=EMPTY, name="Input type")
    grid: msgspec.Raw = EMPTY
    block: msgspec.Raw = EMPTY
    bytes: Whole = 0
    elements: Whole = msgspec.field(default=0, name="In msg nelems")
    dtype: str = ""
    allocated: Whole = msgspec.field(default=0, name="Bytes")
    address: Whole = msgspec.field(default=0, name="Addr")
    device: Whole = msgspec.field(default=-1, name="Device Id")
    total_allocated: Whole = msgspec.field(default=0, name="Total Allocated")
    total_reserved: Whole = msgspec.field(default=0, name="Total Reserved")


NO_ARGS = _Args()


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    name: str = ""
    cat: str = ""
    ts: float = math.nan
    dur: float = math.nan
    pid: int | str | None = None
    tid: int | str | None = None
    args: _Args = NO_ARGS


class _File(msgspec.Struct):
    traceEvents: list[msgspec.Raw]
    distributedInfo: msgspec.Raw = EMPTY
    deviceProperties: msgspec.Raw = EMPTY


def read_columns(path: Path) -> tuple[Columns, Header]:
    """The intervals of a `.json` or `.json.gz` trace, sorted by start, and what stands around them.

    Raises `TraceError` for a file that is absent, empty, cut short, not a trace, that holds a time that
    is not a number or an event of a kind that Kineto does not write: never a silently shorter list.
    """
    data = _bytes(path)
    if not data.strip():
        raise TraceError("the file is empty", where=str(path), mend=AGAIN)
    try:
        columns, header = _fast(data, path)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        columns, header = _lenient(data, path)
    if not len(columns):
        raise TraceError("the trace holds no interval", where=str(path), mend=AGAIN)
    del data
    return columns.take(np.lexsort((-columns.duration, columns.start))), header


def _bytes(path: Path) -> bytes | bytearray:
    """The file unpacked, and known to be UTF-8, which msgspec checks only in what it keeps."""
    try:
        with open(path, "rb") as stream:
            packed = stream.read(2) == b"\x1f\x8b"
        if not packed:
            data = path.read_bytes()
        else:
            data = bytearray()
            with gzip.open(path) as stream:
                while chunk := stream.read(CHUNK):
                    data += chunk
        if not data.isascii():
            decoder = getincrementaldecoder("utf-8")()
            for place in range(0, len(data), CHUNK):
                decoder.decode(data[place : place + CHUNK])
            decoder.decode(b"", final=True)
        return data
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise TraceError(f"cannot be read: {type(error).__name__}: {error}", where=str(path), mend=AGAIN) from None


def _fast(data: bytes | bytearray, path: Path) -> tuple[Columns, Header]:
    file = msgspec.json.decode(data, type=_File)
    decode = msgspec.json.Decoder(_Event).decode

    def events() -> Iterable[_Event]:
        for raw in file.traceEvents:
            try:
                yield decode(raw)
            except msgspec.ValidationError:
                yield _event(json.loads(bytes(raw), strict=False), path)

    around = (json.loads(bytes(raw) or b"null") for raw in (file.distributedInfo, file.deviceProperties))
    return _columns(events(), path), _header(*around, path)


def _lenient(data: bytes | bytearray, path: Path) -> tuple[Columns, Header]:
    try:
        content = json.loads(data.decode("utf-8"), strict=False)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"not JSON, or cut short: {error}", where=str(path), mend=AGAIN) from None
    events = content.get("traceEvents") if isinstance(content, dict) else None
    if not isinstance(events, list):
        raise TraceError("no traceEvents: not a torch trace", where=str(path), mend=AGAIN)
    header = _header(content.get("distributedInfo"), content.get("deviceProperties"), path)
    return _columns((_event(entry, path) for entry in events), path), header


def _header(job: object, devices: object, path: Path) -> Header:
    job = {} if job is None else job
    rank, world = (job.get("rank", 0), job.get("world_size", 1)) if isinstance(job, dict) else (None, None)
    if not (_is_whole(rank) and _is_whole(world)):
        raise TraceError(f"distributedInfo does not name a rank: {job!r:.80}", where=str(path), mend=AGAIN)
    named = [one.get("name") for one in devices if isinstance(one, dict)] if isinstance(devices, list) else []
    return Header(rank, world, tuple(name for name in named if isinstance(name, str)))


def _event(entry: object, path: Path) -> _Event:
    """An event that `json` read, with what is missing or of the wrong kind left out, as `_Event` has it."""
    if not isinstance(entry, dict):
        raise TraceError(f"an entry of traceEvents is no event: {entry!r:.80}", where=str(path), mend=AGAIN)
    args = entry.get("args") if isinstance(entry.get("args"), dict) else {}
    found = {}
    for one in msgspec.structs.fields(_Args):
        value = args.get(one.encode_name)
        if one.type is Whole:
            found[one.name] = value if _is_whole(value) else one.default
        elif one.type is str:
            found[one.name] = value if isinstance(value, str) else ""
        else:
            found[one.name] = EMPTY if value is None else msgspec.Raw(json.dumps(value).encode())
    return _Event(
        ph=_word(entry, "ph"),
        name=_word(entry, "name"),
        cat=_word(entry, "cat"),
        ts=_number(entry.get("ts")),
        dur=_number(entry.get("dur")),
        pid=_place(entry.get("pid")),
        tid=_place(entry.get("tid")),
        args=_Args(**found),
    )


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _word(entry: dict, key: str) -> str:
    return str(entry.get(key, ""))


def _number(value: object) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _place(value: object) -> int | str | None:
    return value if value is None or isinstance(value, (int, str)) else str(value)


class _Codes(dict):
    """A code for each value, in the order of their appearance."""

    def __missing__(self, value):
        code = self[value] = len(self)
        return code


class _Builder:
    """Columns that grow by an event at a time: 100 bytes for each, names and shapes only once."""

    def __init__(self):
        self.start, self.duration = array("d"), array("d")
        self.external_id, self.correlation, self.bytes, self.sequence = (array("q") for _ in range(4))
        self.name, self.category, self.thread = (_Coding() for _ in range(3))
        self.shapes, self.types, self.grid, self.block = (_Coding(b"") for _ in range(4))
        self.memory = (array("d"), *(array("q") for _ in range(5)))

    def interval(self, event: _Event) -> None:
        args = event.args
        self.start.append(event.ts)
        self.duration.append(event.dur)
        self.name.add(event.name)
        self.category.add(event.cat)
        self.thread.add((event.pid, event.tid))
        self.external_id.append(args.external_id)
        self.correlation.append(args.correlation)
        self.bytes.append(args.bytes or _payload(args))
        self.sequence.append(args.sequence)
        self.shapes.add(bytes(args.shapes))
        self.types.add(bytes(args.types))
        self.grid.add(bytes(args.grid))
        self.block.add(bytes(args.block))

    def allocation(self, event: _Event) -> None:
        args = event.args
        found = (event.ts, args.allocated, args.address, args.device, args.total_allocated, args.total_reserved)
        for column, value in zip(self.memory, found):
            column.append(value)

    def columns(self, path: Path) -> Columns:
        name, category = self.name.column(), self.category.column()
        start = _nanoseconds(self.start, name, path)
        duration = _nanoseconds(self.duration, name, path, least=0.0)
        for what, column in (("name", name), ("category", category)):
            if "" in column.values:
                raise TraceError(f"an interval has no {what}", where=str(path), mend=AGAIN)
        time, *rest = self.memory
        allocations = Coded(("[memory]",), np.zeros(len(time), np.int32))
        return Columns(
            name=name,
            category=category,
            thread=self.thread.column(),
            start=start,
            duration=duration,
            external_id=np.asarray(self.external_id),
            correlation=np.asarray(self.correlation),
            bytes=np.asarray(self.bytes),
            sequence=np.asarray(self.sequence),
            shapes=_decoded(self.shapes, lambda found: tuple(_shape(dims) for dims in found)),
            element_bytes=_decoded(self.types, lambda found: tuple(SIZES.get(str(one), 0) for one in found)),
            grid=_decoded(self.grid, _shape),
            block=_decoded(self.block, _shape),
            memory=Memory(_nanoseconds(time, allocations, path), *map(np.asarray, rest)),
        )


class _Coding(dict):
    """A code for each distinct value, in the order of their appearance, and the codes of the rows."""

    def __init__(self, *first):
        super().__init__({value: code for code, value in enumerate(first)})
        self.codes = array("i")
        self.append = self.codes.append

    def __missing__(self, value):
        code = self[value] = len(self)
        return code

    def add(self, value) -> None:
        self.append(self[value])

    def column(self) -> Coded:
        return Coded(tuple(self), np.asarray(self.codes, np.int32))


def _columns(events: Iterable[_Event], path: Path) -> Columns:
    built = _Builder()
    for event in events:
        if event.ph == "X":
            built.interval(event)
        elif event.ph == "i" and event.name == "[memory]":
            built.allocation(event)
        elif event.ph not in WITHOUT_LENGTH and not _is_nothing(event):
            what = f"event {event.name!r} is of phase {event.ph!r}, which Kineto does not write"
            raise TraceError(what, where=str(path), mend=AGAIN)
    return built.columns(path)


def _payload(args: _Args) -> int:
    payload = args.elements * SIZES.get(args.dtype.lower(), 0)
    return payload if _is_whole(payload) else 0


def _is_nothing(event: _Event) -> bool:
    """Some writers close their list with `{}`."""
    return not (event.ph or event.name or event.cat) and math.isnan(event.ts)


def _nanoseconds(microseconds: array, name: Coded, path: Path, least: float = -math.inf) -> np.ndarray:
    """int64 (N,). Whole and broken part apart: times since 1970 in microseconds fill a float64's digits."""
    times = np.asarray(microseconds, np.float64)
    good = (np.abs(times) < LONGEST_MICROSECONDS) & (times >= least)
    if not good.all():
        raise TraceError(f"event {name[np.argmin(good)]!r} has no valid time", where=str(path), mend=AGAIN)
    whole = np.floor(times)
    return whole.astype(np.int64) * 1000 + np.rint((times - whole) * 1000).astype(np.int64)


def _decoded(texts: _Coding, read: Callable[[list], tuple]) -> Coded:
    """The values of JSON lists, equal ones under one code however they were spelled."""
    values, code_of = _Coding(), []
    for text in texts:
        found = json.loads(text, strict=False) if text else []
        code_of.append(values[read(found if isinstance(found, list) else [])])
    return Coded(tuple(values), np.array(code_of, np.int32)[np.asarray(texts.codes, np.int32)])


def _shape(dims: object) -> tuple[int, ...]:
    whole = isinstance(dims, list) and all(_is_whole(size) for size in dims)
    return tuple(dims) if whole else ()
