"""Running one notebook in processes of its own, and leaving none of them behind."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import nbformat
import psutil

from helpers.course import pages
from helpers.course.catalogue import Entry
from helpers.course.lesson import TOKEN_VARIABLE
from helpers.course.outcome import Evidence, Outcome, State, evidence, judge, now

SAMPLE_S = 0.2
GRACE_S = 15.0


@dataclass(frozen=True)
class Job:
    """One notebook to run. mode: (live, simulated or recorded; why). timeout_s: of the whole notebook."""

    entry: Entry
    target: str
    parameters: dict
    output: Path
    timeout_s: int
    key: str
    mode: tuple[str, str]


class Runner:
    """Runs jobs, from one thread or several; `stop` ends those that run now."""

    def __init__(self):
        self._tokens: set[str] = set()
        self._stopped = threading.Event()

    def run(self, job: Job) -> Outcome:
        """Run one notebook and return its outcome; its whole process tree is gone afterwards."""
        token = uuid.uuid4().hex
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as scratch:
            self._tokens.add(token)
            try:
                failure, peak = self._execute(job, token, Path(scratch))
            finally:
                end_tree(token)
                self._tokens.discard(token)
            seconds = time.monotonic() - start
            return self._conclude(job, token, failure, seconds, peak, Path(scratch))

    def stop(self) -> None:
        """End every process of the jobs that run; their `run` returns soon after."""
        self._stopped.set()
        for token in list(self._tokens):
            end_tree(token)

    def _execute(self, job: Job, token: str, scratch: Path) -> tuple[dict | None, int]:
        if self._stopped.is_set():
            return {"state": "skipped", "why": "interrupted", "cell": ""}, 0
        order = {
            "source": str(job.entry.path.resolve()),
            "output": str(scratch / "executed.ipynb"),
            "parameters": job.parameters,
            "timeout_s": job.timeout_s,
            "folder": str(job.entry.path.parent.resolve()),
            "result": str(scratch / "result.json"),
        }
        (scratch / "job.json").write_text(json.dumps(order), encoding="utf-8")
        with (scratch / "worker.log").open("wb") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "helpers.course.worker", str(scratch / "job.json")],
                env=os.environ | {TOKEN_VARIABLE: token},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            in_time, peak = watch(worker, token, job.timeout_s + GRACE_S)
        if self._stopped.is_set():
            return {"state": "skipped", "why": "interrupted", "cell": ""}, peak
        if not in_time:
            return {"state": "timeout", "why": f"took more than {job.timeout_s} s", "cell": ""}, peak
        try:
            return json.loads((scratch / "result.json").read_text(encoding="utf-8")), peak
        except (OSError, ValueError):
            words = (scratch / "worker.log").read_text(errors="replace").strip().splitlines()
            why = f"the worker ended with code {worker.returncode}: {words[-1] if words else 'no words'}"
            return {"state": "fail", "why": why, "cell": ""}, peak

    def _conclude(self, job: Job, token: str, failure, seconds: float, peak: int, scratch: Path) -> Outcome:
        executed = scratch / "executed.ipynb"
        found, page = Evidence(False, 0, (), {}), ""
        with contextlib.suppress(OSError, ValueError):
            notebook = nbformat.read(executed, as_version=4)
            found = evidence(notebook, token)
            page = pages.publish(notebook, job.output, job.entry.title)
        state, why, cell = judge(failure, found)
        return Outcome(
            notebook=job.entry.id,
            title=job.entry.title,
            target=job.target,
            state=State(state),
            why=why,
            cell=cell,
            seconds=round(seconds, 2),
            peak_bytes=peak,
            mode=job.mode[0],
            how=job.mode[1],
            quantities=found.quantities,
            checks=found.checks,
            page=page and f"{job.target}/{job.entry.id}.html",
            key=job.key,
            carried_from=page and str(job.output.with_suffix(".html").resolve()),
            date=now(),
        )


def watch(worker: subprocess.Popen, token: str, limit_s: float) -> tuple[bool, int]:
    """Wait for the worker; returns whether it ended in time, and its tree's peak resident bytes."""
    end, peak = time.monotonic() + limit_s, 0
    while worker.poll() is None:
        peak = max(peak, resident_bytes(worker.pid))
        if time.monotonic() > end:
            end_tree(token)
            worker.wait()
            return False, peak
        time.sleep(SAMPLE_S)
    return True, peak


def resident_bytes(pid: int) -> int:
    """Resident memory of a process and all its descendants, added up."""
    total = 0
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
    return total


def end_tree(token: str) -> None:
    """Kill every process that carries `token` in its environment, until none is left.

    Kernels run in sessions of their own, and what a cell starts may leave its parent: neither a
    process group nor a list of children would find them all.
    """
    for _ in range(20):
        found = [process for process in psutil.process_iter() if _carries(process, token)]
        if not found:
            return
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=2)


def _carries(process: psutil.Process, token: str) -> bool:
    if process.pid == os.getpid():
        return False
    try:
        return process.environ().get(TOKEN_VARIABLE) == token and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):
        return False
