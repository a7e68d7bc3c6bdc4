"""Distil a report to what the lessons and the classifier need, as small JSON that no wheel is needed to read.

Only figures are kept, to seven significant digits, under the tool's own metric names, with device, version and
origin. The raw report stays where it is.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from helpers.profiling.counters.aliases import NEEDS, spellings
from helpers.profiling.counters.record import CounterError, KernelRecord, Source

DIGITS = 7
THROUGHPUTS = ("sm_percent", "memory_percent")
VERDICTS = ("SOLBottleneck", "GPU Speed Of Light Throughput")
EXTRA = ("profiler__replayer_passes",)


def distil(record: KernelRecord) -> KernelRecord:
    """The same kernel with the metrics of `aliases.NEEDS`, the parts of its throughputs that are above 0,
    and the tool's own verdict; every number rounded to seven significant digits."""
    wanted = {name for need in NEEDS for name in spellings(need)} | set(EXTRA)
    parts = {
        name: tuple(part for part, percent in record.breakdown(need) if percent > 0)
        for need in THROUGHPUTS
        for name in spellings(need)
        if name in record.breakdowns
    }
    wanted |= {part for names in parts.values() for part in names}
    return replace(
        record,
        metrics={name: _rounded(record.metrics[name]) for name in sorted(wanted & record.metrics.keys())},
        rules=tuple(rule for rule in record.rules if rule[0] in VERDICTS)[:1],
        breakdowns={name: tuple(sorted(names)) for name, names in parts.items() if names},
    )


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def to_json(record: KernelRecord) -> dict:
    """A record as plain JSON; a counter whose collection failed is null."""
    content = asdict(record)
    content["metrics"] = {name: value if math.isfinite(value) else None for name, value in record.metrics.items()}
    return {name: value for name, value in content.items() if value not in ("", (), {}, None)}


def from_json(content: Mapping, where: str = "") -> KernelRecord:
    """The record of `to_json`. Raises `CounterError` for anything else."""
    try:
        fields = dict(content)
        metrics = {name: math.nan if value is None else float(value) for name, value in fields.pop("metrics").items()}
        triples = {name: tuple(fields.pop(name)) for name in ("grid", "block", "capability") if name in fields}
        return KernelRecord(
            **triples,
            metrics=metrics,
            rules=tuple((rule, text) for rule, text in fields.pop("rules", ())),
            breakdowns={name: tuple(parts) for name, parts in fields.pop("breakdowns", {}).items()},
            source=Source(**fields.pop("source")),
            **fields,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CounterError(
            f"this is no distilled kernel: {type(error).__name__} {error}",
            where=where,
            mend="distil the report again",
        ) from None


def save(record: KernelRecord, path: Path) -> None:
    """Write a distilled record. The file appears whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(to_json(record), indent=1, ensure_ascii=False, allow_nan=False) + "\n", "utf-8")
    os.replace(part, path)


def load(path: Path) -> KernelRecord:
    """Read a record that `save` wrote. Raises `CounterError` for a file that is absent, cut or of another kind."""
    try:
        return from_json(json.loads(path.read_text(encoding="utf-8")), str(path))
    except (OSError, ValueError, RecursionError) as error:
        raise CounterError(
            f"the recorded kernel cannot be read: {type(error).__name__}",
            where=str(path),
            mend="install the course again",
        ) from None
