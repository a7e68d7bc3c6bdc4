"""Submit the training script to Slurm: one task a rank, resubmitted from its last checkpoint when it is preempted.

python -m helpers.training.slurm --nodes 2 --ranks-per-node 4 --folder jobs -- --preset small --checkpoint run

Slurm keeps the job, and the command returns. With --local the job is of this machine, and the command waits for it.
"""

import argparse
import atexit
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import submitit
from submitit.helpers import DelayedSubmission

from helpers.errors import CourseError
from helpers.training import train
from helpers.training.presets import load_preset

TIMEOUT_MIN = 60
QUOTED_LINES = 5
FIRST_PORT, PORTS = 10_000, 20_000  # below the range from which systems hand out ports
LOOPBACK = "127.0.0.1"


class SlurmError(CourseError):
    """A job that cannot be submitted, or whose training ended badly."""


class TrainTask:
    """The work of one Slurm task: one rank of `helpers.training.train` with `arguments`.

    submitit pickles it, calls it on every task, and calls `checkpoint` on task 0 when Slurm signals
    that the job is preempted or out of time.
    """

    def __init__(self, arguments: Sequence[str]):
        self.arguments = tuple(arguments)

    def __call__(self) -> None:
        """Train as the rank that this task is. Raises `SlurmError` when the script reports an error."""
        job = submitit.JobEnvironment()
        os.environ.update(rendezvous(job))
        signals = _leave_when_requeued(job)
        try:
            code = train.main(list(self.arguments))
        except Exception:
            if signals and job.global_rank:
                train.leave(1)  # rank 0 is gone to be requeued: a written error would end the whole job
            raise
        if code:
            raise SlurmError(
                f"rank {job.global_rank} ended with exit code {code}",
                where=str(job.paths.stderr),
                mend="read the line that begins with `train:` there",
            )
        atexit.register(train.leave, 0)

    def checkpoint(self) -> DelayedSubmission | None:
        """The same task again, to resume from its newest checkpoint; None when it keeps none."""
        return DelayedSubmission(self) if train.parse(list(self.arguments)).checkpoint else None


def rendezvous(job: submitit.JobEnvironment) -> dict[str, str]:
    """The environment variables by which torch's `env://` finds the other ranks of `job`.

    Ranks meet on the job's first host, on a port that follows from the job's id, so that every task
    computes the same one and two jobs on a host seldom share it. On one node they meet on loopback,
    for a machine's own name may not resolve.
    """
    return {
        "RANK": str(job.global_rank),
        "WORLD_SIZE": str(job.num_tasks),
        "LOCAL_RANK": str(job.local_rank),
        "LOCAL_WORLD_SIZE": str(job.num_tasks // job.num_nodes),
        "MASTER_ADDR": job.hostnames[0] if job.num_nodes > 1 else LOOPBACK,
        "MASTER_PORT": str(FIRST_PORT + int(job.raw_job_id) % PORTS),
    }


def submit(
    arguments: Sequence[str],
    *,
    nodes: int = 1,
    ranks_per_node: int = 1,
    folder: Path | str,
    local: bool = False,
    options: Mapping[str, int | str] | None = None,
) -> submitit.Job:
    """Submit one job that trains on `nodes` × `ranks_per_node` ranks, and return it without waiting.

    arguments: of `helpers.training.train`. folder: for submitit's files and the ranks' logs, on a file
    system that the nodes share. local: processes of this machine through the same path. options: of
    submitit's `update_parameters`, as `{"gpus_per_node": 4, "slurm_partition": "gpu"}`.

    With `--checkpoint` among the arguments a job that is preempted or out of time is submitted again
    and resumes. Raises a `CourseError` (`SlurmError`, `PresetError` or `PlanError`) before anything is
    submitted.
    """
    _require_possible(nodes, ranks_per_node, local)
    _require_trainable(arguments, nodes * ranks_per_node)
    cluster = "local" if local else "slurm"
    sizes = {"nodes": nodes, "tasks_per_node": ranks_per_node}
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        executor.update_parameters(**{"name": "train", "timeout_min": TIMEOUT_MIN} | dict(options or {}) | sizes)
        return executor.submit(TrainTask(arguments))
    except OSError as error:
        raise SlurmError(
            f"cannot write the job's files: {error}", where=str(folder), mend="name a folder that the nodes share"
        ) from None
    except (RuntimeError, NameError, TypeError, ValueError, KeyError, AssertionError) as error:
        raise SlurmError(
            f"cannot submit to {cluster}: {error}", mend="run on a login node, or try it here with --nodes 1 --local"
        ) from None


def _require_possible(nodes: int, ranks_per_node: int, local: bool) -> None:
    for name, value in (("--nodes", nodes), ("--ranks-per-node", ranks_per_node)):
        if value < 1:
            raise SlurmError(f"{name} is {value}", mend="use a whole number from 1")
    if local and nodes > 1:
        raise SlurmError(
            f"--local has this machine only, not {nodes} nodes",
            mend=f"use --nodes 1 --ranks-per-node {ranks_per_node} --local",
        )


def _require_trainable(arguments: Sequence[str], world: int) -> None:
    """Find now what would fail after hours in the queue."""
    try:
        args = train.parse(list(arguments))
    except SystemExit as stop:
        if not stop.code:
            raise
        raise SlurmError(
            f"the training script does not take {' '.join(arguments)}",
            mend="see python -m helpers.training.train --help",
        ) from None
    train.plan_of(args).shards(world)
    load_preset(args.preset).batch_per_rank(world // args.tensor_parallel)


def _leave_when_requeued(job: submitit.JobEnvironment) -> list[int]:
    """End rank 0 at once when submitit has asked for the job to run again; returns the signals so far.

    submitit's own handler raises `SystemExit` wherever the step is, and its way out leads through a
    process group in the middle of a collective.
    """
    number, signals = getattr(signal, f"SIG{job.USR_SIG}"), []
    requeue = signal.getsignal(number)

    def handle(*arrived) -> None:
        signals.append(number)
        try:
            requeue(*arrived)
        except SystemExit as stop:
            train.leave(stop.code)

    signal.signal(number, handle)
    return signals


def last_words(job: submitit.Job) -> tuple[bool, list[str]]:
    """Wait for a job; (whether every rank ended well, the last lines that rank 0 printed, and what went wrong).

    Lines of submitit's own are left out.
    """
    try:
        error = job.exception()
    except submitit.core.utils.UncompletedJobError as incomplete:
        error = incomplete
    printed = [line for line in (job.task(0).stdout() or "").splitlines() if not line.startswith("submitit ")]
    if error is None:
        return True, printed[-QUOTED_LINES:]
    errors = [line for rank in range(job.num_tasks) for line in (job.task(rank).stderr() or "").splitlines()]
    said = [line for line in errors if line.startswith("train: ")]
    silent = [rank for rank in range(job.num_tasks) if not job.task(rank).paths.result_pickle.exists()]
    killed = [f"rank {rank} ended without a word: something killed it, often a lack of memory" for rank in silent]
    return False, printed[-QUOTED_LINES:] + (said or killed or str(error).strip().splitlines()[-1:])[:1]


def main(argv: Sequence[str] | None = None) -> int:
    """Submit and print the job's id; 2 on an error of use.

    With --local, wait for the job and print its last lines; 1 when it failed, and 130 when an interrupt ended it.
    """
    parser = argparse.ArgumentParser(prog="helpers.training.slurm", description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--ranks-per-node", type=int, default=1, metavar="RANKS")
    parser.add_argument("--folder", type=Path, required=True, help="for the job's files; the nodes must share it")
    parser.add_argument("--local", action="store_true", help="processes of this machine instead of Slurm")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of submitit, as gpus_per_node=4 (a GPU a rank), timeout_min=240 or slurm_partition=gpu",
    )
    parser.add_argument("arguments", nargs="*", help="of helpers.training.train, after --")
    args = parser.parse_args(argv)
    try:
        job = submit(
            args.arguments,
            nodes=args.nodes,
            ranks_per_node=args.ranks_per_node,
            folder=args.folder,
            local=args.local,
            options=dict(map(_option, args.option)),
        )
    except CourseError as error:
        print(f"slurm: {error}", file=sys.stderr)
        return 2
    print(f"job {job.job_id}")
    print(f"log {args.folder.absolute() / f'{job.job_id}_0_log.out'}", flush=True)
    if args.local:
        return _wait(job)
    print("it runs in the background: follow the log, and the .err file beside it for what went wrong")
    return 0


def _wait(job: submitit.Job) -> int:
    try:
        well, words = last_words(job)
    except KeyboardInterrupt:
        job.cancel()
        print("interrupted: the job was ended", file=sys.stderr)
        return 130
    print(*words, sep="\n")
    print("the job ended well" if well else "the job failed: the .err file beside the log says more")
    return 0 if well else 1


def _option(text: str) -> tuple[str, int | str]:
    name, sign, value = text.partition("=")
    if not sign:
        raise SlurmError(f"--option {text} has no value", mend="write it as NAME=VALUE")
    return name, int(value) if value.isdigit() else value


if __name__ == "__main__":
    from helpers.training.slurm import main as imported  # tasks unpickle the module by this name

    sys.exit(imported())
