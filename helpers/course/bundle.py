"""A recording of a machine: what was measured there, and what could not be, in one file that others replay."""

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path

from helpers.course.files import write_atomically
from helpers.errors import CourseError
from helpers.measure import Quantity, recorded

VERSION = 1


class BundleError(CourseError):
    """A recording that cannot be read whole, or a part that it does not hold."""


@dataclass(frozen=True)
class Number:
    """One measured number: its name, value in the base unit, and unit."""

    name: str
    value: float
    unit: str


@dataclass(frozen=True)
class Part:
    """One thing that was to be recorded.

    live: whether it was measured on the machine. why: why not, with the mend, or ''. numbers: what a
    table shows. detail: whatever else a lesson replays, as JSON (a distilled trace, kernel metrics).
    """

    name: str
    live: bool
    why: str = ""
    numbers: tuple[Number, ...] = ()
    detail: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Bundle:
    """Provenance and parts. date: ISO. packages: versions by name. dirty: uncommitted changes in the course."""

    target: str
    device: str
    date: str
    commit: str
    dirty: bool
    system: str
    packages: dict[str, str]
    parts: tuple[Part, ...]

    def part(self, name: str) -> Part:
        """The part called `name`; `BundleError` when it was never asked for or was not live, with the reason."""
        for part in self.parts:
            if part.name == name and part.live:
                return part
            if part.name == name:
                raise BundleError(
                    f"{name} was not recorded: {part.why}", where=self.device, mend="record it elsewhere"
                )
        there = ", ".join(part.name for part in self.parts)
        raise BundleError(f"there is no part {name!r}", where=self.device, mend=f"the parts are {there}")

    def quantities(self, name: str) -> dict[str, Quantity]:
        """The numbers of a part, stamped with device, date and versions."""
        tool = f"torch {self.packages.get('torch', 'unknown')}"
        stamp = {"device": self.device, "date": self.date[:10], "tool": tool}
        return {each.name: recorded(each.value, each.unit, **stamp) for each in self.part(name).numbers}

    def receipt(self) -> str:
        """A line a part: live with how many numbers, or why not."""
        lines = [f"{self.device}, {self.date[:10]}, target {self.target}"]
        for part in self.parts:
            said = f"live, numbers: {len(part.numbers)}" if part.live else f"not recorded: {part.why}"
            lines.append(f"  {part.name:<10}{said}")
        return "\n".join(lines)


def write_bundle(bundle: Bundle, path: Path) -> Path:
    """Write the bundle as JSON; the file is whole or absent. Raises `BundleError` where it cannot be written."""
    content = {"version": VERSION} | asdict(bundle)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
    except ValueError as error:
        raise BundleError(f"a number is not finite: {error}", where=str(path), mend="record again") from None
    except OSError as error:
        raise BundleError(f"cannot be written: {error}", where=str(path), mend="name a writable file") from None
    return path


def read_bundle(path: Path) -> Bundle:
    """Read a bundle. Raises `BundleError` for a file that is absent, cut, of another version or form."""
    again = "record again, or copy the file again"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(f"cannot be read: {error}", where=str(path), mend=again) from None
    if not isinstance(content, dict) or content.pop("version", None) != VERSION:
        raise BundleError(f"not a recording of version {VERSION}", where=str(path), mend=again)
    try:
        parts = tuple(_part(entry) for entry in content.pop("parts"))
        return Bundle(parts=parts, **content)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise BundleError(f"not the form of a recording: {error}", where=str(path), mend=again) from None


def _part(entry: dict) -> Part:
    numbers = tuple(Number(str(n["name"]), float(n["value"]), str(n["unit"])) for n in entry["numbers"])
    if not all(math.isfinite(number.value) for number in numbers):
        raise ValueError(f"part {entry['name']!r} holds a number that is not finite")
    return Part(str(entry["name"]), bool(entry["live"]), str(entry["why"]), numbers, dict(entry["detail"]))
