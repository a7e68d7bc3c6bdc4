"""`helpers run`: every notebook of the course for a target, each in its own process, one report."""

import argparse
import hashlib
import json
import platform
import shutil
import sys
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path

from tqdm import tqdm

from helpers.course import report
from helpers.course.catalogue import ROOT, Entry, catalogue
from helpers.course.doctor import machine
from helpers.course.outcome import Outcome, State, skipped
from helpers.course.process import Job, Runner
from helpers.errors import CourseError
from helpers.hardware import Capabilities, Target, detect_target, load_target

SOURCES = ("*.py", "*.spv", "*.yaml", "*.json")


class RunError(CourseError):
    """A run that cannot start: nothing to run, a parameter no notebook has, no run to resume."""


@dataclass(frozen=True)
class Plan:
    """What a run does: the notebooks for one target, their parameters, and where results go."""

    entries: tuple[Entry, ...]
    target: Target
    machine: Capabilities
    folder: Path
    environment: str
    parameters: dict

    def job(self, entry: Entry) -> Job:
        """The work of one notebook."""
        parameters = {"target": self.target.name} | self.parameters
        return Job(
            entry=entry,
            target=self.target.name,
            parameters=parameters,
            output=self.folder / self.target.name / f"{entry.id}.ipynb",
            timeout_s=self.target.timeout(entry.id),
            key=key_of(entry, parameters, self.environment),
            mode=entry.mode(self.machine),
        )


def key_of(entry: Entry, parameters: dict, environment: str) -> str:
    """What must be the same for a passed notebook not to run again: source, parameters, environment."""
    source = hashlib.sha256(entry.path.read_bytes()).hexdigest()
    text = json.dumps([source, parameters, environment], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def environment_hash() -> str:
    """A hash of what a result depends on beside its notebook: Python, packages, helpers, targets."""
    digest = hashlib.sha256(f"{sys.version}{platform.machine()}{report.packages()}".encode())
    for path in sorted(path for pattern in SOURCES for path in (ROOT / "helpers").rglob(pattern)):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def choose(only: Sequence[str], root: Path) -> tuple[Entry, ...]:
    """The notebooks whose id matches a glob of `only`, all without any; `RunError` for a glob that none matches."""
    entries = catalogue(root)
    for glob in only:
        if not any(fnmatch(entry.id, glob) for entry in entries):
            ids = ", ".join(entry.id for entry in entries)
            raise RunError(f"no notebook matches {glob!r}", mend=f"the ids are {ids}")
    return tuple(entry for entry in entries if not only or any(fnmatch(entry.id, glob) for glob in only))


def run_plan(plan: Plan, *, jobs: int = 1, earlier: dict[str, Outcome] | None = None) -> tuple[Outcome, ...]:
    """Run every notebook of the plan and return the outcomes in the plan's order.

    earlier: passed outcomes by key, carried over instead of run. A failure stops nothing. On an
    interrupt every process tree is ended, the report of what is known is written with the others
    noted as interrupted, and `KeyboardInterrupt` goes on.
    """
    work = [plan.job(entry) for entry in plan.entries]
    known = _without_running(plan, work, earlier or {})
    to_do = [job for job in work if job.entry.id not in known]
    for outcome in filter(lambda one: one.reused, known.values()):
        tqdm.write(outcome.line())
    try:
        for outcome in _run_all(to_do, jobs):
            known[outcome.notebook] = outcome
    except KeyboardInterrupt:
        for job in to_do:
            known.setdefault(job.entry.id, skipped(job, "interrupted"))
        report.write(plan.folder, tuple(known[job.entry.id] for job in work), plan.machine)
        raise
    return tuple(known[job.entry.id] for job in work)


def _without_running(plan: Plan, work: list[Job], earlier: dict[str, Outcome]) -> dict[str, Outcome]:
    """The outcomes that need no run: all skipped on the wrong machine, or passed before."""
    unmet = plan.target.unmet(plan.machine)
    if unmet:
        why = f"target {plan.target.name} needs {', '.join(unmet)}"
        return {job.entry.id: skipped(job, why) for job in work}
    return {job.entry.id: earlier[job.key].carried_over(plan.folder) for job in work if job.key in earlier}


def _run_all(work: list[Job], jobs: int):
    """Yield outcomes as they come, with a progress bar on a terminal."""
    runner = Runner()
    with tqdm(total=len(work), unit="notebook", disable=None) as bar, ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(runner.run, job) for job in work]
        try:
            for future in as_completed(futures):
                outcome = future.result()
                bar.update()
                bar.write(outcome.line())
                yield outcome
        except BaseException:
            runner.stop()
            raise


def passed_before(folders: Iterable[Path]) -> dict[str, Outcome]:
    """The passed outcomes of earlier runs by key, of a later folder before those of an earlier one."""
    return {
        outcome.key: outcome
        for folder in folders
        for outcome in report.dated(report.read(folder))
        if outcome.state is State.PASS and outcome.key
    }


def earlier_runs(out: Path) -> list[Path]:
    """The runs under `out` that have a summary, oldest first; `RunError` when there is none."""
    runs = sorted(path.parent for path in out.glob("[0-9]*/summary.json"))
    if not runs:
        raise RunError("there is no run to resume", where=str(out), mend="run without --resume first")
    return runs


def new_folder(out: Path, root: Path) -> Path:
    """A fresh folder `<UTC time>-<commit>` under `out`."""
    commit, _ = report.commit(root)
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{commit[:7]}"
    folder = out / name
    while folder.exists():
        folder = out / f"{name}-{uuid.uuid4().hex[:4]}"
    folder.mkdir(parents=True)
    return folder


def require_parameters(plan: Plan) -> None:
    """Raise `RunError` for a parameter that a notebook does not declare, or of another type.

    papermill itself only warns, and the notebook would run with its default.
    """
    from papermill import inspect_notebook

    for entry in plan.entries:
        declared = inspect_notebook(str(entry.path))
        for name, value in plan.job(entry).parameters.items():
            if name not in declared:
                there = ", ".join(declared) or "none: tag its parameters cell"
                raise RunError(f"the notebook has no parameter {name!r}", where=entry.id, mend=f"it has {there}")
            wanted = declared[name]["inferred_type_name"]
            if wanted not in ("None", type(value).__name__):
                raise RunError(
                    f"parameter {name} is {value!r}, but must be {wanted}", where=entry.id, mend="mend the value"
                )


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `helpers run`."""
    add = parser.add_argument
    add("--target", help="cpu, cuda-1, cuda-4, mps or vulkan; detected without it")
    add("--only", action="append", default=[], metavar="GLOB", help="notebook ids, as 'training/*'; may be repeated")
    add("--jobs", type=int, default=1, metavar="N", help="notebooks at a time (default 1)")
    add("--resume", nargs="?", const="all", metavar="RUN", help="do not repeat what passed in RUN (in any run)")
    add("--out", type=Path, default=Path("runs"), help="where runs go (default runs/)")
    add("--root", type=Path, default=ROOT, help="the folder that holds notebooks/ and solutions/")
    add("-p", "--parameter", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"), help="as papermill's")
    add("--slurm", nargs="?", const="slurm", metavar="CLUSTER", help="submit each notebook as a Slurm job")
    add("--slurm-option", action="append", default=[], metavar="NAME=VALUE", help="as slurm_partition=gpu")


def execute(args: argparse.Namespace) -> int:
    """Run, write the report, print the matrix; 0 only when every notebook passed or was skipped."""
    if args.jobs < 1:
        raise RunError(f"{args.jobs} notebooks at a time", mend="use --jobs 1 or more")
    here = machine()
    target = load_target(args.target or detect_target(here))
    parameters = {name: _literal(value) for name, value in args.parameter}
    plan = Plan(choose(args.only, args.root), target, here, Path(), environment_hash(), parameters)
    require_parameters(plan)
    earlier = passed_before(_resumed(args)) if args.resume else None
    plan = replace(plan, folder=new_folder(args.out, args.root))
    print(f"target {target.name}: {len(plan.entries)} notebooks into {plan.folder}", flush=True)
    outcomes = _on_slurm(plan, args) if args.slurm else run_plan(plan, jobs=args.jobs, earlier=earlier)
    page = report.write(plan.folder, outcomes, here, args.root)
    print(report.matrix_text(outcomes), f"\nreport: {page.resolve()}", sep="\n")
    return int(any(outcome.state not in (State.PASS, State.SKIPPED) for outcome in outcomes))


def _resumed(args: argparse.Namespace) -> list[Path]:
    return earlier_runs(args.out) if args.resume == "all" else [Path(args.resume)]


def _on_slurm(plan: Plan, args: argparse.Namespace) -> tuple[Outcome, ...]:
    from helpers.course import slurm

    try:
        return slurm.run_plan(plan, cluster=args.slurm, options=args.slurm_option)
    except slurm.SlurmError:
        shutil.rmtree(plan.folder)  # no job runs that would write there
        raise


def _literal(text: str):
    """`3`, `0.5` and `True` become numbers and booleans; all else stays text."""
    try:
        value = json.loads(text.lower() if text in ("True", "False") else text)
    except ValueError:
        return text
    return value if isinstance(value, int | float) else text
