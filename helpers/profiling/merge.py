"""The traces of several ranks as one file that Perfetto opens: a process a rank, one clock."""

import gzip
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers.profiling.trace import TraceError, read_trace

STRIDE = 1_000_000
IDS = ("External id", "correlation")
ID_STRIDE = 1 << 40  # 8192 ranks stay whole in a browser's numbers


@dataclass(frozen=True)
class Merged:
    """What was written: the ranks in order, the intervals of all of them, and seconds from first to last."""

    path: Path
    ranks: tuple[int, ...]
    events: int
    seconds: float


def merge_traces(paths: Sequence[Path], target: Path) -> Merged:
    """Write the traces of the ranks of one machine to `target` (`.json` or `.json.gz`).

    Each rank becomes a process with its number as its name and place, so that the ranks lie under
    each other. Times are kept: ranks of one machine share its clock; those of several machines are as
    far apart as their clocks. Raises `TraceError` for a file that `read_trace` refuses, for none at
    all, or for two traces of one rank; nothing is written then.
    """
    if not paths:
        raise TraceError("there is no trace to merge", mend="capture one on each rank first")
    traces = [(read_trace(path), _content(path)) for path in paths]
    ranks = tuple(trace.rank for trace, _ in traces)
    twice = {rank for rank in ranks if ranks.count(rank) > 1}
    if twice:
        raise TraceError(f"two traces are of rank {min(twice)}", where=str(target), mend="capture one on each rank")
    events = [event for trace, content in traces for event in _moved(content["traceEvents"], trace.rank)]
    _write(target, {"traceEvents": events, "displayTimeUnit": "ms"})
    columns = [trace.columns for trace, _ in traces]
    start = min(one.start.min() for one in columns)
    end = max((one.start + one.duration).max() for one in columns)
    return Merged(target, ranks, sum(map(len, columns)), int(end - start) / 1e9)


def _content(path: Path) -> dict:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data, strict=False)


def _moved(events: list, rank: int) -> list[dict]:
    """The events of one rank with process ids of its own, and a name for each of its processes.

    Kineto gives a rank several processes (the CPU, each GPU, itself). Flow arrows, External ids and
    correlations are numbered anew too, so that a kernel still joins to the launch of its own rank.
    """
    events = [event for event in events if event]
    pids = {pid: number for number, pid in enumerate(dict.fromkeys(str(event.get("pid")) for event in events))}
    moved = []
    for event in events:
        if event.get("name") in ("process_name", "process_sort_index", "process_labels"):
            continue
        event = event | {"pid": rank * STRIDE + pids[str(event.get("pid"))]}
        if event.get("ph") in ("s", "t", "f"):
            event["id"] = f"{rank}:{event.get('id')}"
        if isinstance(event.get("args"), dict):
            event["args"] = {key: _own_id(key, value, rank) for key, value in event["args"].items()}
        moved.append(event)
    for pid, number in pids.items():
        place = rank * STRIDE + number
        name = f"rank {rank}" if number == 0 else f"rank {rank} · {pid}"
        moved.append({"ph": "M", "name": "process_name", "pid": place, "args": {"name": name}})
        moved.append({"ph": "M", "name": "process_sort_index", "pid": place, "args": {"sort_index": place}})
    return moved


def _own_id(key: str, value: object, rank: int) -> object:
    return value + rank * ID_STRIDE if key in IDS and isinstance(value, int) and value else value


def _finite(value: object) -> object:
    """Without NaN and infinities, which Kineto may write and no viewer reads."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write(target: Path, content: dict) -> None:
    try:
        data = json.dumps(content, allow_nan=False).encode()
    except ValueError:
        data = json.dumps(_finite(content)).encode()
    draft = target.with_name(target.name + ".tmp")
    draft.write_bytes(gzip.compress(data) if target.suffix == ".gz" else data)
    draft.replace(target)
