"""A trace as a small JSON that ships with the course: the intervals that matter, in whole nanoseconds.

Left out are Python's own calls, and calls of the runtime that only ask: those that put work on a device, wait
for it, or belong to a start stay. So health, breakdown and joins are those of the whole file.
"""

import numpy as np

from helpers.profiling.columns import NONE, Coded, Columns, starts_work
from helpers.profiling.health import START_UP
from helpers.profiling.trace import Events, Trace

CODED = ("name", "category", "thread", "shapes", "element_bytes", "grid")
WHOLE = ("start", "duration", "external_id", "correlation", "bytes")
UNSEEN = ("python_function", "gpu_user_annotation")


def distil_trace(trace: Trace) -> dict:
    """The trace as plain lists, for `json.dumps`. Times count from its first interval."""
    columns = _kept(trace.columns)
    content: dict = {"rank": trace.rank, "world": trace.world, "devices": list(dict.fromkeys(trace.devices))}
    for name in CODED:
        codes, column = {}, getattr(columns, name)
        rows = [codes.setdefault(value, len(codes)) for value in column.tolist()]
        content[name] = {"values": list(codes), "rows": rows}
    for name in WHOLE:
        column = getattr(columns, name)
        content[name] = (column - column.min() if name == "start" else column).tolist()
    return content


def restore_trace(content: dict) -> Trace:
    """The trace that `distil_trace` made lists of. Raises `KeyError`, `TypeError` or `ValueError` for other lists."""
    coded = {name: _coded(content[name]) for name in CODED}
    whole = {name: np.array(content[name], np.int64) for name in WHOLE}
    lengths = {len(column) for column in (*coded.values(), *whole.values())}
    if len(lengths) != 1 or lengths == {0}:
        raise ValueError(f"columns of {sorted(lengths)} rows")
    nothing = np.zeros(lengths.pop(), np.int64)
    block = Coded(((),), nothing.astype(np.int32))
    columns = Columns(**coded, **whole, sequence=nothing + NONE, block=block)
    return Trace(Events(columns), int(content["rank"]), int(content["world"]), tuple(content["devices"]))


def _kept(columns: Columns) -> Columns:
    call = columns.category.where(lambda category: category.endswith(("_runtime", "_driver")))
    return columns.take(np.flatnonzero(~columns.of(*UNSEEN) & (~call | columns.name.where(_matters))))


def _matters(call: str) -> bool:
    return starts_work(call) or any(word in call for word in ("Synchronize", *START_UP))


def _coded(column: dict) -> Coded:
    values = tuple(_frozen(value) for value in column["values"])
    rows = np.array(column["rows"], np.int32)
    if not values or rows.min(initial=0) < 0 or rows.max(initial=0) >= len(values):
        raise ValueError("a code without a value")
    return Coded(values, rows)


def _frozen(value):
    return tuple(_frozen(one) for one in value) if isinstance(value, list) else value
