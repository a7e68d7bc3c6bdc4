"""Collect counters with Nsight Compute: the narrowest command, a deadline, and recordings where it cannot be."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers.profiling.counters.aliases import STALLS, spellings
from helpers.profiling.counters.csv_report import read_csv
from helpers.profiling.counters.preflight import Preflight, capability, preflight
from helpers.profiling.counters.reader import log_error
from helpers.profiling.counters.record import CounterError, KernelRecord, Source

LIMITER = (
    *(
        "duration",
        "sm_percent",
        "memory_percent",
        "dram_percent",
        "l1_percent",
        "l2_percent",
        "sm_clock",
        "dram_clock",
    ),
    *("tensor_percent", "fma_percent", "alu_percent", "fp64_percent", "xu_percent", "lsu_percent", "issue_percent"),
    *("sm_active_cycles", "sm_elapsed_cycles", "occupancy_achieved", "occupancy_theoretical", "waves"),
    *("dram_read_bytes", "dram_write_bytes", "warps_eligible", "issue_active"),
)
"""The needs that the classifier asks for, without the stalls: a dozen passes where the full set takes 35 to 47."""
ROOFLINE = ("duration", "sm_clock", "dram_read_bytes", "dram_write_bytes", "fadd_per_cycle", "fmul_per_cycle")
ROOFLINE += ("ffma_per_cycle", "fp32_peak_per_cycle", "dram_peak_bytes_per_cycle", "dram_clock")
STALL_NEEDS = tuple(f"stall_{reason}" for reason in STALLS if reason != "gmma")
DEVICE = ("device__attribute_display_name", "device__attribute_multiprocessor_count")
NEWER = (
    ((10, 0), (11, 9), ("sm__pipe_tensor_subpipe", "sm__pipe_tc")),
    ((12, 0), (99, 0), ("dram__bytes_op_",)),
)
"""(first capability, last capability, stems of the metric names that such a GPU has instead)."""
REPLAY = ("kernel", "application", "range", "app-range")
FULL_SET_LAUNCHES = 3
GRACE = 5.0


@dataclass(frozen=True)
class Collection:
    """What `collect` came back with.

    records: of this machine when live, else the recorded kernels of the fallback. note: why they are recorded,
    in a sentence that names the mend, or '' when live. report: the `.ncu-rep`, for ncu's own window, or None.
    """

    records: tuple[KernelRecord, ...]
    live: bool
    note: str = ""
    command: tuple[str, ...] = ()
    report: Path | None = None


def metrics_for(needs: Sequence[str], capability: tuple[int, int] | None = None) -> tuple[str, ...]:
    """The metric names to ask ncu for: one spelling per need, that of the GPU's generation where it differs."""
    at = capability or (0, 0)
    stems = tuple(stem for first, last, names in NEWER if first <= at <= last for stem in names)
    chosen = []
    for need in needs:
        names = spellings(need)
        chosen.append(next((name for name in names if stems and name.startswith(stems)), names[0]))
    return tuple(dict.fromkeys(chosen))


def command(
    script: str | Path | Sequence[str],
    *,
    report: str | Path,
    kernels: str = "",
    needs: Sequence[str] = LIMITER,
    sections: Sequence[str] = (),
    full: bool = False,
    skip: int = 0,
    launches: int = 1,
    replay: str = "kernel",
    capability: tuple[int, int] | None = None,
) -> tuple[str, ...]:
    """The narrowest ncu command that answers the needs.

    script: a Python file, or a whole command. report: the `.ncu-rep` to write. kernels: a regular expression
    that part of a kernel's name matches. sections: ncu's own, beside the needs. full: ncu's whole set, for at
    most three launches. skip, launches: how many matching launches to skip and to profile. replay: ncu's mode.
    Raises `CounterError` for what would run for hours, or could not run.
    """
    _check(kernels, sections, full, skip, launches, replay)
    asked = [*DEVICE, *metrics_for(needs, capability)]
    what = ["--set", "full"] if full else ["--metrics", ",".join(asked)]
    for section in () if full else sections:
        what += ["--section", section]
    which = ["--kernel-name", f"regex:{kernels}"] if kernels else []
    which += ["--launch-skip", str(skip)] if skip else []
    program = [sys.executable, str(script)] if isinstance(script, str | Path) else [str(word) for word in script]
    return (
        *("ncu", "--target-processes", "application-only", "--replay-mode", replay),
        *(*which, "--launch-count", str(launches), *what),
        *("--export", str(report), "--force-overwrite", *program),
    )


def _check(kernels: str, sections: Sequence[str], full: bool, skip: int, launches: int, replay: str) -> None:
    try:
        re.compile(kernels)
    except re.error as error:
        raise CounterError(f"kernels={kernels!r} is no regular expression: {error}", mend="escape it") from None
    if launches < 1 or skip < 0:
        raise CounterError(f"launches={launches}, skip={skip}", mend="profile at least one launch, skip none or more")
    if replay not in REPLAY:
        raise CounterError(f"no replay mode is called {replay!r}", mend=f"use one of {', '.join(REPLAY)}")
    if full and launches > FULL_SET_LAUNCHES:
        raise CounterError(
            f"the full set replays each kernel some 40 times, and {launches} launches were asked for",
            mend=f"at most {FULL_SET_LAUNCHES} launches of one kernel with full=True, or name needs=… instead",
        )
    if any(not re.fullmatch(r"[A-Za-z_]\w*", section) for section in sections):
        raise CounterError(f"sections={sections!r}", mend="name sections as SpeedOfLight, Occupancy, WarpStateStats")


def collect(
    script: str | Path | Sequence[str],
    *,
    folder: str | Path,
    deadline: float = 300.0,
    fallback: Mapping[str, KernelRecord] | None = None,
    environ: Mapping[str, str] = os.environ,
    proc: Path = Path("/proc"),
    **options,
) -> Collection:
    """Profile a script, or fall back to recorded kernels and say why.

    folder: for the report. deadline: s, after which ncu and all it started are ended. fallback: the records to
    use instead, by default `recorded_kernels()`. options: those of `command`, `report` excepted. Raises
    `CounterError` only for options that `command` refuses: what the machine cannot do is in the note.
    """
    report = Path(folder) / "report.ncu-rep"
    options.setdefault("capability", capability(environ))
    words = command(script, report=report, **options)
    plain = script if isinstance(script, str | Path) else next((w for w in script if str(w).endswith(".py")), None)
    before = preflight(
        plain,
        metrics=() if options.get("full") else metrics_for(options.get("needs", LIMITER)),
        full=options.get("full", False),
        kernels=options.get("kernels", ""),
        launches=options.get("launches", 1),
        proc=proc,
        environ=environ,
    )
    try:
        records = _profile(words, report, before, deadline, environ)
    except CounterError as error:
        return Collection(_recorded(fallback), False, _note(error), words)
    return Collection(records, True, "", words, report)


def _recorded(fallback: Mapping[str, KernelRecord] | None) -> tuple[KernelRecord, ...]:
    from helpers.profiling.recordings import recorded_kernels

    return tuple((recorded_kernels() if fallback is None else fallback).values())


def _note(error: CounterError) -> str:
    return f"Recorded kernels stand in: {error.what}. To collect here: {error.mend or 'see above'}."


def _profile(words, report: Path, before: Preflight, deadline: float, environ) -> tuple[KernelRecord, ...]:
    if not before.ready:
        raise CounterError(before.findings[0].what, mend=before.findings[0].mend)
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    status, log = _run(words, report.with_suffix(".log"), deadline, environ)
    if status or not report.is_file():
        raise _why(log, status, str(report.parent))
    export = ("ncu", "--import", str(report), "--page", "raw", "--csv", "--print-units", "base")
    status, text = _run(export, report.with_suffix(".csv"), deadline, environ)
    if status:
        raise _why(text, status, str(report))
    return read_csv(text, Source(report.name, f"ncu {before.ncu}"))


def _why(log: str, status: int, where: str) -> CounterError:
    complaints = re.findall(r"^==(?:ERROR|WARNING)== ?(.*)", log, re.MULTILINE)
    error = log_error(complaints or log.strip().splitlines()[-1:], log, where)
    return CounterError(f"{error.what} (exit status {status})", where=where, mend=error.mend)


def _run(words: Sequence[str], output: Path, deadline: float, environ: Mapping[str, str]) -> tuple[int, str]:
    """Exit status and output of a command. It and all that it started are ended at the deadline.

    The output goes to a file: a child that outlives its parent would hold a pipe open.
    """
    with output.open("wb") as stream:
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=dict(environ),
                start_new_session=True,
            )
        except OSError as error:
            raise CounterError(f"{words[0]} cannot be started: {error.strerror}", mend="check PATH") from None
        try:
            status = process.wait(deadline)
        except subprocess.TimeoutExpired:
            _end(process)
            raise CounterError(
                f"ncu did not finish within {deadline:g} s",
                where=str(output),
                mend="profile fewer launches, run one rank, or give it more time (deadline=)",
            ) from None
        except BaseException:
            _end(process)
            raise
    return status, output.read_text(encoding="utf-8", errors="replace")


def _end(process: subprocess.Popen) -> None:
    """End a process and its whole group, politely first."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(GRACE)
        except (ProcessLookupError, PermissionError, subprocess.TimeoutExpired):
            continue
    process.poll()
