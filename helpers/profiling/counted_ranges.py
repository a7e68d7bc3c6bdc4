"""Counters inside a torch trace, as Kineto's range profiler wrote them until 2026-06."""

import gzip
import json
import math
import zlib
from pathlib import Path

from helpers.profiling.counters.record import CounterError, KernelRecord, Source

MISSING = "__missing__"  # Kineto's name for a kernel whose name it lost
RANGE = "cuda_profiler_range"


def range_records(path: Path) -> tuple[KernelRecord, ...]:
    """The kernels that Kineto's range profiler counted into a torch trace (until 2026-06), in the order of launches.

    Raises `CounterError` for a file that cannot be read, and for a trace without such ranges.
    """
    content = _json(Path(path))
    events = content.get("traceEvents") if isinstance(content, dict) else None
    ranges = [e for e in events if isinstance(e, dict) and e.get("cat") == RANGE] if isinstance(events, list) else []
    if not ranges:
        raise CounterError(
            "the trace holds no counted range", where=str(path), mend="collect counters with ncu, and read its report"
        )
    devices = content.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices and isinstance(devices[0], dict) else {}
    source = Source(Path(path).name, "Kineto, CUPTI range profiler")
    return tuple(_range(e, str(first.get("name", "")), source) for e in sorted(ranges, key=_start))


def _start(event: dict) -> float:
    number = event.get("ts")
    return float(number) if isinstance(number, (int, float)) else math.inf


def _range(event: dict, device: str, source: Source) -> KernelRecord:
    args = event.get("args") if isinstance(event.get("args"), dict) else {}
    metrics = {
        name: float(number)
        for name, number in args.items()
        if "__" in name and isinstance(number, (int, float)) and not isinstance(number, bool)
    }
    name = str(event.get("name", ""))
    return KernelRecord("" if name == MISSING else name, device, metrics=metrics, source=source)


def _json(path: Path) -> object:
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8")
        return json.loads(text, strict=False)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise CounterError(
            f"cannot be read: {type(error).__name__}: {error}", where=str(path), mend="capture it again"
        ) from None
