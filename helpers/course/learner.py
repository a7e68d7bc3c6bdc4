"""A learner's progress: one line a check in a file of their own, never on a network."""

import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from helpers.course.lesson import TOKEN_VARIABLE
from helpers.measure.show import Table

FILE = Path(__file__).parents[2] / ".progress" / "progress.jsonl"
NOT_A_LEARNER = (TOKEN_VARIABLE, "PYTEST_VERSION", "CI")


@dataclass(frozen=True)
class Entry:
    """One check: when (ISO, UTC), which exercise, its state, and the symptom class or ''."""

    time: str
    exercise: str
    state: str
    symptom: str


def record(exercise: str, state: str, symptom: str, file: Path | None = None) -> None:
    """Append one entry; nothing happens under the runner, pytest or CI, which learn nothing.

    A folder that cannot be written costs the entry, not the check.
    """
    if file is None:
        if any(os.environ.get(name) for name in NOT_A_LEARNER):
            return
        file = FILE
    now = datetime.now(UTC).isoformat(timespec="seconds")
    line = json.dumps({"time": now, "exercise": exercise, "state": state, "symptom": symptom})
    try:
        file.parent.mkdir(exist_ok=True)
        with file.open("a", encoding="utf-8") as stream:
            stream.write(line + "\n")
    except OSError:
        return


def read(file: Path = FILE) -> tuple[tuple[Entry, ...], int]:
    """The entries of a progress file, and how many lines could not be read."""
    entries, broken = [], 0
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []
    for line in lines:
        try:
            entries.append(Entry(**json.loads(line)))
        except (ValueError, TypeError):
            broken += 1
    return tuple(entries), broken


def progress(file: Path = FILE) -> Table:
    """A table of what was tried: exercise, best state, tries, and the last symptom."""
    entries, broken = read(file)
    rows = []
    for exercise in dict.fromkeys(entry.exercise for entry in entries):
        own = [entry for entry in entries if entry.exercise == exercise]
        passed = any(entry.state == "PASS" for entry in own)
        rows.append((exercise, "✓ PASS" if passed else own[-1].state, len(own), own[-1].symptom or "–"))
    if broken:
        rows.append((f"({broken} unreadable lines)", "", "", ""))
    return Table(("exercise", "state", "checks", "last symptom"), tuple(rows))
