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


def progress(*names: str, file: Path | None = None) -> Table:
    """A table of exercises: what each builds, its best state or `not tried`, its checks, and the last symptom.

    names: exercises, as `training.2`, or tracks; all of the course without any. A lab ends with those of its own.
    Raises `CheckError` for a name that is neither.
    """
    from helpers.course.checks import TRACKS, all_exercises, find_exercise

    found = [all_exercises((name,)) if name in TRACKS else (find_exercise(name),) for name in names or TRACKS]
    entries, broken = read(FILE if file is None else file)
    rows = [_row(exercise.id, exercise.title, entries) for exercise in dict.fromkeys(sum(found, ()))]
    if broken:
        rows.append((f"({broken} unreadable lines)", "", "", "", ""))
    return Table(("exercise", "what", "state", "checks", "last symptom"), tuple(rows))


def _row(exercise: str, title: str, entries: tuple[Entry, ...]) -> tuple:
    own = [entry for entry in entries if entry.exercise == exercise]
    if not own:
        return exercise, title, "not tried", 0, "–"
    passed = any(entry.state == "PASS" for entry in own)
    return exercise, title, "✓ PASS" if passed else own[-1].state, len(own), own[-1].symptom or "–"
