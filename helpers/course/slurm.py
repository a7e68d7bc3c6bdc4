"""`helpers run --slurm`: the same notebooks as Slurm jobs, one each, in one report."""

from pathlib import Path
from typing import TYPE_CHECKING

from helpers.course.outcome import Outcome, State, now, skipped
from helpers.course.process import Job, Runner
from helpers.errors import CourseError

if TYPE_CHECKING:
    from helpers.course.run import Plan

MINUTES_OVER = 5


class SlurmError(CourseError):
    """An option that submitit or Slurm does not take, or a cluster that is not there."""


def run_plan(plan: "Plan", *, cluster: str = "slurm", options: list[str] = ()) -> tuple[Outcome, ...]:
    """Submit each notebook as a job, wait for all, and return the outcomes in the plan's order.

    cluster: `slurm`, or `local` for processes of this machine through the same path. options:
    `NAME=VALUE` of submitit's `update_parameters`, as `slurm_partition=gpu`. The run's folder must
    be on a file system that the nodes share. A requirement of the target is looked at on the node
    that runs the job, not here. Raises `SlurmError` when a job is refused, and no job is left then.
    """
    executor = _executor(plan.folder / "slurm", cluster, options, plan.target.timeout_s["default"])
    work = [plan.job(entry) for entry in plan.entries]
    submitted = _submit(executor, work)
    return tuple(_outcome(job, future) for job, future in zip(work, submitted))


def run_on_node(job: Job) -> Outcome:
    """The work of one Slurm job, on its node: the mode is that of the node."""
    from dataclasses import replace

    from helpers.course.doctor import machine
    from helpers.hardware import load_target

    here = machine()
    unmet = load_target(job.target).unmet(here)
    if unmet:
        return skipped(job, f"target {job.target} needs {', '.join(unmet)}")
    return Runner().run(replace(job, mode=job.entry.mode(here)))


def _executor(folder: Path, cluster: str, options: list[str], timeout_s: int):
    import submitit

    parameters = dict(option.partition("=")[::2] for option in options)
    minutes = -(-timeout_s // 60) + MINUTES_OVER
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        executor.update_parameters(timeout_min=minutes, **{k: _number(v) for k, v in parameters.items()})
    except (RuntimeError, NameError, TypeError, ValueError, KeyError, AssertionError) as error:
        raise SlurmError(
            f"cannot submit to {cluster!r}: {error}", mend="run on a login node, or use --slurm local to try it"
        ) from None
    return executor


def _submit(executor, work: list[Job]) -> list:
    """Submit all jobs or none: a refused one cancels those before it."""
    submitted = []
    try:
        for job in work:
            submitted.append(executor.submit(run_on_node, job))
    except (OSError, RuntimeError) as error:
        for job in submitted:
            job.cancel()
        last = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise SlurmError(
            f"the cluster refused a job: {last}", mend="mend the --slurm-option, or see what sbatch says by hand"
        ) from None
    return submitted


def _number(text: str):
    return int(text) if text.isdigit() else text


def _outcome(job: Job, future) -> Outcome:
    try:
        return future.result()
    except Exception as error:
        why = f"the job did not come back: {str(error).strip().splitlines()[-1]}"
        return Outcome(job.entry.id, job.entry.title, job.target, State.FAIL, why, date=now())
