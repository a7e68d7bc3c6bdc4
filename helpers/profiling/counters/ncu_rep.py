"""The `.ncu-rep` files of Nsight Compute, read with NVIDIA's own `ncu-report` wheel (optional extra `ncu`).

The wheel reads a cut file without a word, and aborts its process on some damaged ones. So the file's frame is
checked first, with nothing but its own sizes, and the wheel then reads it in a child process: the learner's
kernel survives whatever the file holds.

The frame: `NVR\\0`, a file header, then blocks. Each is a 4-byte little-endian length, a header of that length
and a payload; the header is a protobuf message that says how many sources (field 1) and kernels (2) the payload
holds, something about the session (3), and the payload's size (5).
"""

import importlib.util
import json
import math
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from helpers.profiling.counters.record import CounterError, KernelRecord, Source
from helpers.profiling.counters.units import factor, scaled

MAGIC = b"NVR\0"
INSTALL = f"{sys.executable} -m pip install ncu-report"
DEADLINE = 120.0
CHILD = Path(__file__).with_name("ncu_rep_child.py")
SOURCES, RESULTS, SESSION, SIZE, RANGES = 1, 2, 3, 5, 7
CREATED = 2
VERSION = re.compile(rb"Nsight Compute Target.{1,4}?(\d+\.\d+\.\d+)", re.DOTALL)


@dataclass(frozen=True)
class Frame:
    """What the blocks of a report say about it: kernels in it, the tool's version, the day it was made (or '')."""

    kernels: int
    version: str
    date: str


def has_wheel() -> bool:
    """Whether the `ncu-report` wheel is installed. It is proprietary, so the course never needs it."""
    return importlib.util.find_spec("ncu_report") is not None


def read_ncu_rep(path: Path, *, deadline: float = DEADLINE) -> tuple[KernelRecord, ...]:
    """The kernels of a report, in order. A kernel whose collection failed is there, with its counters NaN.

    deadline: s, for the wheel's own reading. Raises `CounterError` for a missing wheel, a cut or damaged file
    and a report without kernels.
    """
    found = frame(path.read_bytes(), path)
    if not found.kernels:
        raise CounterError(
            "the report holds no kernel", where=str(path), mend="check ncu's kernel filter (-k, -s, -c)"
        )
    if not has_wheel():
        raise CounterError(
            "reading a .ncu-rep needs NVIDIA's ncu-report",
            where=str(path),
            mend=f"{INSTALL}   (proprietary licence), or export it where ncu is:"
            f"  ncu --import {path.name} --page raw --csv --print-units base > {path.stem}.csv",
        )
    entries = _ask_the_wheel(path, deadline)
    if len(entries) != found.kernels:
        raise _damaged(f"{found.kernels} kernels are in the file, {len(entries)} can be read", path)
    tool = f"ncu {found.version}".strip()
    return tuple(_record(entry, Source(path.name, tool, found.date), path) for entry in entries)


def frame(data: bytes, path: Path) -> Frame:
    """Walk the blocks of a report. Raises `CounterError` where the file ends too early, or the sizes disagree.

    A cut exactly between two blocks shows only when a source without its kernel, or no session, is left.
    """
    try:
        start = 8 + _length(data, 4)
        blocks, last = [], {}
        while start < len(data):
            length = _length(data, start)
            last = dict(_fields(_piece(data, start + 4, length)))
            size = last.get(SIZE, 0)
            _check_items(_piece(data, start + 4 + length, size), last)
            blocks.append(last)
            start += 4 + length + size
        sessions = b"".join(block.get(SESSION, b"") for block in blocks)
    except (IndexError, ValueError, TypeError) as error:
        raise _damaged(f"the file of {len(data)} bytes is cut or damaged ({error})", path) from None
    version = VERSION.search(sessions)
    if not blocks or not version or last.get(SOURCES):
        raise _damaged("the last blocks of the report are missing: it is cut", path)
    kernels = sum(block.get(RESULTS, 0) + block.get(RANGES, 0) for block in blocks)
    return Frame(kernels, version[1].decode(), _date(blocks[0].get(SESSION, b"")))


def _date(session: bytes) -> str:
    """The day of the session, UTC, or '' where the message does not hold a plausible time."""
    try:
        created = dict(_fields(session)).get(CREATED, 0)
        return datetime.fromtimestamp(created, UTC).date().isoformat() if 1.5e9 < created < 4e9 else ""
    except (IndexError, ValueError, TypeError):
        return ""


def _length(data: bytes, at: int) -> int:
    return int.from_bytes(_piece(data, at, 4), "little")


def _piece(data: bytes, at: int, size: int) -> bytes:
    if size < 0 or at + size > len(data):
        raise ValueError(f"{size} bytes are due at {at}")
    return data[at : at + size]


def _check_items(payload: bytes, header: dict) -> None:
    """A payload is items of 4-byte length and content: as many as the header says, and nothing else."""
    at = items = 0
    while at < len(payload):
        at, items = at + 4 + len(_piece(payload, at + 4, _length(payload, at))), items + 1
    due = sum(header.get(number, 0) for number in (SOURCES, RESULTS, RANGES))
    if items != due:
        raise ValueError(f"a block holds {items} items, and says {due}")


def _fields(message: bytes):
    """(field number, value) of a protobuf message: an int, or bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
        elif kind == 2:
            size, at = _varint(message, at)
            value, at = _piece(message, at, size), at + size
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            value, at = _piece(message, at, size), at + size
        else:
            raise ValueError(f"a field of kind {kind}")
        yield key >> 3, value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        value |= (message[at] & 127) << shift
        at += 1
        if message[at - 1] < 128:
            return value, at
    raise ValueError("a number does not end")


def _damaged(what: str, path: Path) -> CounterError:
    return CounterError(what, where=str(path), mend="copy the report again, or collect again")


def _ask_the_wheel(path: Path, deadline: float) -> list[dict]:
    """What the child process read. The wheel has aborted on damaged files: an exit status is an answer here."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "kernels.json"
        command = [sys.executable, str(CHILD), str(path.resolve()), str(answer)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=deadline, check=False, cwd=folder)
        except subprocess.TimeoutExpired:
            raise _damaged(f"ncu-report did not read it within {deadline:g} s", path) from None
        if done.returncode or not answer.is_file():
            words = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
            raise _damaged(f"ncu-report cannot read it (exit status {done.returncode}): {words[-1][:200]}", path)
        return json.loads(answer.read_text(encoding="utf-8"))


def _record(entry: dict, source: Source, path: Path) -> KernelRecord:
    values = {name: value for name, (value, _) in entry["metrics"].items()}
    numbers = {
        name: scaled(float(value) if math.isfinite(value) else math.nan, factor(unit or "", name))
        for name, (value, unit) in entry["metrics"].items()
        if isinstance(value, int | float)
    }
    if not entry["name"] or not numbers:
        raise _damaged(f"the kernel {entry['name'][:60]!r} has no counters: the report is damaged", path)
    return KernelRecord(
        name=entry["name"],
        device=_text(values.get("device__attribute_display_name")),
        capability=_whole(numbers, "device__attribute_compute_capability_", ("major", "minor")) or None,
        grid=_whole(numbers, "launch__grid_dim_", "xyz"),
        block=_whole(numbers, "launch__block_dim_", "xyz"),
        metrics=numbers,
        rules=tuple((rule, _message(message)) for rule, message in entry["rules"] if message),
        source=source,
        breakdowns={
            name.removeprefix("breakdown:"): tuple(value.split(","))
            for name, value in values.items()
            if name.startswith("breakdown:") and value and isinstance(value, str)
        },
    )


def _text(value) -> str:
    return value if isinstance(value, str) else ""


def _whole(numbers: dict[str, float], stem: str, ends) -> tuple:
    found = [numbers.get(f"{stem}{end}", math.nan) for end in ends]
    return tuple(map(int, found)) if all(map(math.isfinite, found)) else ()


def _message(message: dict) -> str:
    title, text = message.get("title") or "", message.get("message") or ""
    return plain_text(f"{title}: {text}" if title else text)


def plain_text(message: str) -> str:
    """A rule's message without its links: `@section:LaunchStats:Launch Statistics@` is `Launch Statistics`."""
    message = re.sub(r"@(?:section|source|table):[^:@]*:([^@]*)@", r"\1", message)
    return re.sub(r"@url:([^:@]*):([^@]*)@", r"\1 (\2)", message)
