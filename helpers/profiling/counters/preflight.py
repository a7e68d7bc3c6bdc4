"""What to check before counters are collected: a run that cannot work, or that hangs, is found here in a second."""

import math
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from helpers.profiling.counters.reader import ALLOW

OLDEST = (2021, 1, 0)
FULL_SET_PASSES = 47
SASS = "sass_thread_inst"
UNCOUNTED = ("launch__", "device__", "profiler__", "numa__", "nvlink__", "c2clink__")
SYS_ADMIN, PERFMON = 21, 38
NCCL_KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
USES_NCCL = re.compile(r"init_process_group|\bnccl\b|fully_shard|DistributedDataParallel")
USES_CUPTI = re.compile(r"torch\.profiler|from torch import profiler|cupti|nvtx\.profile")
OTHER_TOOLS = ("nv-hostengine", "dcgm-exporter", "dcgmi", "nsys", "nsys-launcher")
INJECTIONS = ("CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID", "NVTX_INJECTION64_PATH")
ANSWER_SECONDS = 20.0


class Level(StrEnum):
    """STOP: a run cannot work, or would hang. WARN: it works and may mislead. NOTE: good to know."""

    STOP = "stop"
    WARN = "warn"
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """One thing found before a collection: how grave, what, and what to do about it."""

    level: Level
    what: str
    mend: str = ""

    def __str__(self) -> str:
        return f"{self.level}: {self.what}" + (f"\n      {self.mend}" if self.mend else "")


@dataclass(frozen=True)
class Preflight:
    """The findings, the grave ones first, and the versions of ncu and of the driver ('' where there is none)."""

    findings: tuple[Finding, ...]
    ncu: str = ""
    driver: str = ""

    @property
    def ready(self) -> bool:
        """Whether a collection can start."""
        return not any(finding.level is Level.STOP for finding in self.findings)

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings))


def preflight(
    script: str | Path | None = None,
    *,
    metrics: Sequence[str] = (),
    full: bool = False,
    kernels: str = "",
    launches: int = 1,
    proc: Path = Path("/proc"),
    environ: Mapping[str, str] = os.environ,
) -> Preflight:
    """Check ncu, driver, permission, NCCL, other users of the counters, and the cost.

    script: its text is searched for NCCL and for profilers. metrics, full, kernels, launches: as in
    `collector.command`. proc and environ: where to look. Nothing is profiled, and no GPU is touched.
    """
    ncu, about_ncu = _ncu(environ)
    driver, about_driver = _driver(proc, environ)
    text = _text(script)
    found = [*about_ncu, *about_driver, *(_permission(proc) if driver else ())]
    found += [*_nccl(text, kernels, environ), *_other_users(text, proc, environ)]
    found += [_cost(metrics, full, launches)] if full or metrics else []
    order = list(Level)
    return Preflight(tuple(sorted(found, key=lambda finding: order.index(finding.level))), ncu, driver)


def passes(metrics: Sequence[str], full: bool = False) -> int:
    """About how often ncu replays each kernel for these metrics.

    An estimate: the throughputs of the SM and of the memory have a dozen parts each, and take four passes each;
    instruction counts by opcode are patched in, four in a pass; else four counters of a unit fit a pass, and the
    units are counted side by side. What is known without counting costs nothing. Recorded for comparison
    (`profiler__replayer_passes`): the basic set 8 or 9, the full set 34 to 47.
    """
    if full:
        return FULL_SET_PASSES
    counted = {name for name in metrics if "." in name and not name.startswith(UNCOUNTED)}
    throughputs = {"sm" if name.startswith("sm__") else "memory" for name in counted if "throughput" in name}
    units: dict[str, set[str]] = {}
    for name in counted:
        if "throughput" not in name:
            unit = SASS if SASS in name else name.partition("__")[0]
            units.setdefault(unit, set()).add(name.partition(".")[0])
    needed = {unit: math.ceil(len(names) / 4) for unit, names in units.items()}
    return 4 * len(throughputs) + needed.pop(SASS, 0) + max(needed.values(), default=0)


def capability(environ: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """The compute capability of the first GPU, as nvidia-smi says, or None."""
    words = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    found = re.match(r"(\d+)\.(\d+)\s*$", _answer(words, environ), re.MULTILINE)
    return (int(found[1]), int(found[2])) if found else None


def _answer(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """The output of a short command, or '' when it is absent, fails or does not answer."""
    program = shutil.which(command[0], path=environ.get("PATH", os.defpath))
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, *command[1:]],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_SECONDS,
            stdin=subprocess.DEVNULL,
            env=dict(environ),
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _ncu(environ: Mapping[str, str]) -> tuple[str, list[Finding]]:
    if shutil.which("ncu", path=environ.get("PATH", os.defpath)) is None:
        mend = "install nsight-compute (it comes with the CUDA toolkit, in /usr/local/cuda/bin) and put it on PATH"
        return "", [Finding(Level.STOP, "ncu is not on PATH", mend)]
    found = re.search(r"Version (\d+)\.(\d+)\.(\d+)", _answer(["ncu", "--version"], environ))
    if found is None:
        return "", [
            Finding(Level.STOP, "ncu --version does not answer", "run it in a terminal, and mend what it says")
        ]
    version = ".".join(found.groups())
    if tuple(map(int, found.groups())) < OLDEST:
        what = f"ncu {version} is old: it does not know some metrics, and no newer GPU"
        return version, [Finding(Level.WARN, what, "install a newer nsight-compute")]
    return version, [Finding(Level.NOTE, f"ncu {version}")]


def _driver(proc: Path, environ: Mapping[str, str]) -> tuple[str, list[Finding]]:
    found = re.search(r"Kernel Module[^\n]*?\s(\d+\.\d+(?:\.\d+)?)\s", _text(proc / "driver/nvidia/version"))
    if found:
        return found[1], [Finding(Level.NOTE, f"NVIDIA driver {found[1]}")]
    asked = _answer(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], environ).split()
    if asked and re.fullmatch(r"\d+[\d.]*", asked[0]):
        return asked[0], [Finding(Level.NOTE, f"NVIDIA driver {asked[0]}, as nvidia-smi says")]
    return "", [Finding(Level.STOP, "there is no NVIDIA driver", "counters need an NVIDIA GPU: use the recordings")]


def _permission(proc: Path) -> list[Finding]:
    restricted = re.search(r"RmProfilingAdminOnly:\s*(\d)", _text(proc / "driver/nvidia/params"))
    rights = re.search(r"CapEff:\s*([0-9a-fA-F]+)", _text(proc / "self/status"))
    bits = int(rights[1], 16) if rights else 0
    privileged = bool(bits >> SYS_ADMIN & 1 or bits >> PERFMON & 1)
    if restricted is None:
        return [Finding(Level.NOTE, "whether counters are allowed cannot be seen here: the run will tell", ALLOW)]
    if restricted[1] == "1" and not privileged:
        return [
            Finding(Level.STOP, "the driver gives counters to administrators only (RmProfilingAdminOnly: 1)", ALLOW)
        ]
    return [Finding(Level.NOTE, "counters are allowed")]


def _nccl(text: str, kernels: str, environ: Mapping[str, str]) -> list[Finding]:
    """Several ranks wait for each other inside a collective, and ncu runs their kernels one after the other."""
    world = environ.get("WORLD_SIZE", "1")
    if world.isdigit() and int(world) > 1:
        mend = "profile a script that runs one rank, or trace all ranks with torch.profiler instead"
        return [Finding(Level.STOP, f"WORLD_SIZE is {world}: ncu would hang in the first collective", mend)]
    if USES_NCCL.search(text) and (not kernels or re.search(kernels, NCCL_KERNEL)):
        mend = "run one rank, or give kernels= a pattern that does not match nccl kernels"
        return [Finding(Level.WARN, "the script uses torch.distributed: an nccl kernel under ncu hangs", mend)]
    return []


def _other_users(text: str, proc: Path, environ: Mapping[str, str]) -> list[Finding]:
    """Only one tool at a time can hold the counters."""
    found = [f"{name} is set" for name in INJECTIONS if environ.get(name)]
    names = {_text(path).strip() for path in proc.glob("[0-9]*/comm")}
    found += [f"{name} is running" for name in OTHER_TOOLS if name in names]
    found += ["the script uses torch.profiler or CUPTI itself"] if USES_CUPTI.search(text) else []
    mend = "stop it, or take it out of the script, for this run (dcgmi profile --pause)"
    return [Finding(Level.WARN, f"another tool may hold the counters: {what}", mend) for what in found]


def _cost(metrics: Sequence[str], full: bool, launches: int) -> Finding:
    each = passes(metrics, full)
    what = (
        f"passes for each launch: about {each}. Launches: {launches}. The kernel runs about {each * launches} times"
    )
    if each * launches > 200:
        return Finding(Level.WARN, what, "ask for fewer metrics (needs=) or launches, or name the kernel (kernels=)")
    return Finding(Level.NOTE, what)


def _text(path: str | Path | None) -> str:
    """A file's text, or '' where there is none to read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace") if path else ""
    except (OSError, ValueError):
        return ""
