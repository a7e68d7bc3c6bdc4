"""The stamped quantity: a number that carries its unit and where it came from."""

import math
from dataclasses import asdict, dataclass
from enum import StrEnum

from helpers.errors import CourseError


class Origin(StrEnum):
    """Where a number came from. `measured` means on this machine, now."""

    MEASURED = "measured"
    RECORDED = "recorded"
    SIMULATED = "simulated"
    PREDICTED = "predicted"


class QuantityError(CourseError):
    """A quantity whose value is no number, or a recorded one that does not say from where."""


DECIMAL = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
BINARY = ((2.0**40, "Ti"), (2.0**30, "Gi"), (2.0**20, "Mi"), (2.0**10, "Ki"), (1.0, ""))
SMALL = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
PREFIXES = {"B": BINARY, "s": SMALL, "B/s": DECIMAL, "FLOP/s": DECIMAL, "FLOP": DECIMAL}


@dataclass(frozen=True)
class Quantity:
    """A number with its unit and its stamp.

    value: in the base unit (seconds, bytes, FLOP, FLOP/s, B/s, …), never pre-scaled. Infinity is a value (a
        gain without a limit), and so is NaN (a collection that failed).
    unit: `s`, `B`, `B/s`, `FLOP` and `FLOP/s` print with a prefix (`B` with a binary one);
        any other unit prints as it is, and `""` is a bare number.
    origin: measured, recorded, simulated or predicted.
    source: the device, date and tool of a recorded number, the method of a simulated one, the
        formula of a predicted one.
    Raises `QuantityError` for a value that is no number, or a recorded quantity without a source.
    """

    value: float
    unit: str
    origin: Origin
    source: str = ""

    def __post_init__(self):
        object.__setattr__(self, "origin", Origin(self.origin))
        try:
            math.isfinite(self.value)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            raise QuantityError(f"{self.value!r:.60} is no number", mend="use a number in the base unit") from None
        if self.origin is Origin.RECORDED and not self.source:
            raise QuantityError(
                f"a recorded quantity ({self.value} {self.unit}) does not say where it was recorded",
                mend="use recorded(value, unit, device=…, date=…, tool=…)",
            )

    @property
    def stamp(self) -> str:
        """The words in brackets: `[measured]`, `[recorded: H200, 2026-10-02, ncu 2026.3]`."""
        return f"[{self.origin}{': ' + self.source if self.source else ''}]"

    @property
    def text(self) -> str:
        """Number and unit with three significant digits, without the stamp."""
        scale, prefix = _prefix(self.value, self.unit)
        number = _three_digits(self.value / scale)
        return f"{number} {prefix}{self.unit}".rstrip()

    def __str__(self) -> str:
        return f"{self.text} {self.stamp}"

    def to_json(self) -> dict:
        """A plain dict for reports: value, unit, origin, source. JSON has no number for infinity and NaN: text is."""
        value = self.value if isinstance(self.value, int) else float(self.value)
        return asdict(self) | {"value": value if math.isfinite(value) else str(value), "origin": str(self.origin)}

    @staticmethod
    def from_json(entry: dict) -> "Quantity":
        """Read what `to_json` wrote; other keys, as a name, are left alone."""
        value = float(entry["value"]) if isinstance(entry["value"], str) else entry["value"]
        return Quantity(value, entry["unit"], entry["origin"], entry["source"])


def _prefix(value: float, unit: str) -> tuple[float, str]:
    """The largest scale that leaves a leading digit; the smallest one for a value below all."""
    steps = PREFIXES.get(unit)
    if steps is None or value == 0 or not math.isfinite(value):
        return 1.0, ""
    return next((step for step in steps if abs(value) >= step[0] * 0.9995), steps[-1])


def _three_digits(value: float) -> str:
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "∞" if value > 0 else "-∞"
    if float(value).is_integer() and abs(value) < 1e6:
        return f"{value:.0f}"
    magnitude = abs(value)
    if magnitude >= 1e6 or 0 < magnitude < 1e-3:
        return f"{value:.3g}"
    decimals = max(0, 2 - math.floor(math.log10(magnitude)))
    return f"{value:.{decimals}f}"


def measured(value: float, unit: str) -> Quantity:
    """A number measured on this machine, now."""
    return Quantity(value, unit, Origin.MEASURED)


def recorded(value: float, unit: str, *, device: str, date: str, tool: str) -> Quantity:
    """A number measured earlier on a named `device`, on a `date` (ISO), with a `tool` version."""
    return Quantity(value, unit, Origin.RECORDED, f"{device}, {date}, {tool}")


def simulated(value: float, unit: str, how: str) -> Quantity:
    """A number from a stand-in for the hardware; `how` names the stand-in."""
    return Quantity(value, unit, Origin.SIMULATED, how)


def predicted(value: float, unit: str, formula: str = "") -> Quantity:
    """A number from a formula, before anything ran."""
    return Quantity(value, unit, Origin.PREDICTED, formula)
