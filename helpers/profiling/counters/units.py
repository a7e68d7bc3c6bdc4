"""Numbers and units as Nsight Compute prints them, in any of its versions, brought to base units.

The base units are s, B, Hz, B/s and percent; all other counts and ratios are plain. A prefix is decimal:
`32.77 Kbyte` is 32 770 B, as near as the page comes to the 32 768 it means. Old pages say `usecond` and
`cycle/nsecond`, new ones `us` and `Ghz`; `--print-units base` avoids the prefixes, and loses no digits.
"""

import math
import re
from decimal import Decimal

from helpers.profiling.counters.aliases import NEEDS
from helpers.profiling.counters.record import CounterError

PREFIXES = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
SECONDS = {"s": 1.0, "second": 1.0, "ms": 1e-3, "msecond": 1e-3, "us": 1e-6, "usecond": 1e-6, "µs": 1e-6}
SECONDS |= {"ns": 1e-9, "nsecond": 1e-9, "ps": 1e-12, "minute": 60.0, "min": 60.0, "hour": 3600.0}
COUNTS = {"inst", "cycle", "sector", "sectors", "request", "requests", "warp", "thread", "block", "register", "pass"}
COUNTS |= {"sample", "branches", "branch", "byte", "B", "hz", "Hz", "bit", "wavefront", "transaction", "op", "1"}
PLAIN = {"", "%", "SM", "n/a", "ratio", "pct"}
NUMBER = re.compile(r"[+-]?(\d+|\d{1,3}(,\d{3})+)?(\.\d*)?([eE][+-]?\d+)?")
SPELLINGS = frozenset(name for names in NEEDS.values() for name in names)
KILOHERTZ = re.compile(r"device__attribute_(memory_)?clock_rate|device__attribute_\w+_khz")


def number(text: str) -> float | None:
    """The number in a cell: NaN for `n/a` and for a failed counter, None for what is no number.

    Thousands may be grouped by commas; an error mark `(!)` before the value, and a list of instances in
    brackets after it, are left out.
    """
    text = text.strip().removeprefix("(!)").strip()
    if text.lower() in ("n/a", "nan", "-nan", "-nan(ind)"):
        return math.nan
    if text.endswith(")") and " (" in text:
        text = text[: text.index(" (")]
    if not any(c.isdigit() for c in text) or not text.isascii() or not NUMBER.fullmatch(text):
        return None
    value = float(text.replace(",", ""))
    return value if math.isfinite(value) else None


def factor(unit: str, metric: str = "") -> float:
    """What a value in `unit` is multiplied with. `metric` tells the clocks that the tool gives in kHz, unitless.

    Raises `CounterError` for a unit with a prefix before something unknown, as the scale would be a guess.
    """
    unit = unit.strip()
    if not unit and KILOHERTZ.fullmatch(metric):
        return 1e3
    over, _, under = unit.partition("/")
    if unit in PLAIN:
        return 1.0
    return float(Decimal(repr(_scale(over, unit, metric))) / Decimal(repr(_scale(under, unit, metric))))


def _scale(part: str, unit: str, metric: str) -> float:
    if part in PLAIN or part in COUNTS:
        return 1.0
    if part in SECONDS:
        return SECONDS[part]
    if part[0] in PREFIXES and (part[1:] in COUNTS):
        return PREFIXES[part[0]]
    if re.fullmatch(r"[KMGTP][a-z]+", part):
        raise CounterError(
            f"the unit {unit!r} is not known", where=metric, mend="export the report with --print-units base"
        )
    return 1.0


def base(text: str, unit: str, metric: str = "") -> float | None:
    """The value of a cell in its base unit; None for a text. Raises `CounterError` for a damaged number.

    A cell of a metric that has a unit, or that answers a need, must hold a number: text there is damage, or
    another language's commas.
    """
    value = number(text)
    if value is None:
        if text.strip() and (unit.strip() not in ("", "n/a") or metric in SPELLINGS):
            raise CounterError(
                f"{text[:40]!r} {unit} is no number",
                where=metric,
                mend="export the report again, in the C locale (LC_ALL=C), with --print-units base",
            )
        return None
    return scaled(value, factor(unit, metric))


def scaled(value: float, scale: float) -> float:
    """value x scale in decimal, so that 13.02 us is 1.302e-05 s and not the double beside it."""
    return value if scale == 1 or not math.isfinite(value) else float(Decimal(repr(value)) * Decimal(repr(scale)))
