"""What became of one notebook: its state, and the evidence for it."""

import os
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from nbformat import NotebookNode

from helpers.course.checks import CHECK_KEY
from helpers.course.lesson import SENTINEL_KEY
from helpers.measure.show import METADATA_KEY

if TYPE_CHECKING:
    from helpers.course.process import Job


class State(StrEnum):
    """How a notebook ended. Vacuous: it reached its end, but showed no number and no check."""

    PASS = "pass"
    FAIL = "fail"
    TIMEOUT = "timeout"
    KERNEL_DIED = "kernel died"
    SKIPPED = "skipped"
    VACUOUS = "vacuous"


SYMBOLS = {
    State.PASS: "✓",
    State.FAIL: "✗",
    State.TIMEOUT: "⏱",
    State.KERNEL_DIED: "☠",
    State.SKIPPED: "→",
    State.VACUOUS: "∅",
}


@dataclass(frozen=True)
class Outcome:
    """One notebook on one target.

    why: the reason of any state but pass. cell: the failing cell's id or ''. seconds: wall time of
    its process. peak_bytes: the largest sum of resident memory over its processes (shared pages
    count once a process). mode and how: live, simulated or recorded, and why. quantities: what
    the page showed, each with name, value, unit, origin, source. checks: exercise id to state.
    page: the executed page, relative to the run's folder. key: see `run.key_of`. carried_from: where the page lies.
    date: when it was found (ISO, UTC). reused: when it ran, where a later run took the outcome over; '' otherwise.
    """

    notebook: str
    title: str
    target: str
    state: State
    why: str = ""
    cell: str = ""
    seconds: float = 0.0
    peak_bytes: int = 0
    mode: str = ""
    how: str = ""
    quantities: tuple[dict, ...] = ()
    checks: dict[str, str] = field(default_factory=dict)
    page: str = ""
    key: str = ""
    carried_from: str = ""
    date: str = ""
    reused: str = ""

    def line(self) -> str:
        """One line for the terminal."""
        more = f", {self.reuse}" if self.reused else ""
        more += f" at {self.cell}" if self.cell else ""
        more += f": {self.why.splitlines()[0]}" if self.why else ""
        return f"{SYMBOLS[self.state]} {self.state:<11} {self.notebook:<44} {self.seconds:6.1f} s{more}"

    @property
    def reuse(self) -> str:
        """`reused from 2026-12-01 23:10 UTC`; '' for a notebook that this run ran."""
        return f"reused from {self.reused[:16].replace('T', ' ')} UTC" if self.reused else ""

    def carried_over(self, folder: Path) -> "Outcome":
        """The same outcome, as reused, in the report of a later run in `folder`; its page stays where it is."""
        page = self.page and os.path.relpath(self.carried_from, folder)
        return replace(self, page=page, date=now(), reused=self.reused or self.date)

    def to_json(self) -> dict:
        """A plain dict for summary.json."""
        return asdict(self) | {"state": str(self.state)}

    @staticmethod
    def from_json(entry: dict) -> "Outcome":
        """Read what `to_json` wrote; `TypeError` or `ValueError` for anything else."""
        return Outcome(**entry | {"state": State(entry["state"]), "quantities": tuple(entry["quantities"])})


def now() -> str:
    """The time as outcomes carry it: ISO, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def skipped(job: "Job", why: str) -> Outcome:
    """The outcome of a notebook that was not started."""
    return Outcome(job.entry.id, job.entry.title, job.target, State.SKIPPED, why, date=now())


@dataclass(frozen=True)
class Evidence:
    """What an executed notebook's outputs say."""

    sentinel: bool
    executed: int
    quantities: tuple[dict, ...]
    checks: dict[str, str]


def evidence(notebook: NotebookNode, token: str) -> Evidence:
    """Read the sentinel of this run, the quantities and the check verdicts from the outputs.

    A sentinel with another token, or outside the last code cell, is none.
    """
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    carried = [output.get("metadata", {}) for cell in code for output in cell.outputs]
    last = [output.get("metadata", {}) for output in code[-1].outputs] if code else []
    return Evidence(
        sentinel=any(meta.get(SENTINEL_KEY) == token for meta in last),
        executed=sum(cell.execution_count is not None for cell in code),
        quantities=tuple(entry for meta in carried for entry in meta.get(METADATA_KEY, ())),
        checks={meta[CHECK_KEY]["id"]: meta[CHECK_KEY]["state"] for meta in carried if CHECK_KEY in meta},
    )


def judge(failure: dict | None, found: Evidence) -> tuple[State, str, str]:
    """(state, why, cell) from the exception that the worker met, and from the evidence.

    failure: None, or state, why and cell as the worker wrote them.
    """
    if failure:
        return State(failure["state"]), failure["why"], failure["cell"]
    if not found.sentinel:
        return State.FAIL, "the last cell did not write the sentinel: the notebook left early", ""
    wrong = {name: state for name, state in found.checks.items() if state not in ("PASS", "SKIPPED")}
    if wrong:
        name, state = next(iter(wrong.items()))
        return State.FAIL, f"check {name} answered {state}", ""
    if not found.quantities and not found.checks:
        return State.VACUOUS, "it showed no quantity and no check", ""
    return State.PASS, "", ""
