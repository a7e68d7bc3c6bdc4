"""Where and when numbers were measured, in words: a stored figure outlives the run that drew it."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")


def measured_on(device: str = "cpu") -> str:
    """The stamp of a figure drawn from numbers of this run: `measured on NVIDIA H200, 2026-12-01` (UTC).

    device: `cpu`, `cuda` or `mps`, named as the system names it; any other text is the name itself.
    """
    return f"measured on {device_name(device)}, {datetime.now(UTC).date().isoformat()}"


def device_name(device: str = "cpu") -> str:
    """What the system calls `cpu` (with the processors that this process may use), `cuda` or `mps`."""
    if device == "cuda":
        import torch

        return torch.cuda.get_device_name()
    if device == "mps":
        return f"{cpu_name()} GPU"
    if device != "cpu":
        return device
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"{cpu_name()}, {cores} core{'s' if cores > 1 else ''}"


def cpu_name(info: Path = CPU_INFO) -> str:
    """The processor's name by the system; its architecture, as `aarch64 CPU`, where that names none."""
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        names = [subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()]
    else:
        lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.is_file() else []
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(filter(None, names), f"{platform.machine()} CPU")
