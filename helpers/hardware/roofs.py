"""Measured roofs: how fast this machine multiplies matrices, and how fast it moves bytes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from helpers.errors import CourseError
from helpers.measure import Quantity, Samples, measured, time_call

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
DEVICES = ("cpu", "cuda", "mps")


class RoofError(CourseError):
    """A roof that cannot be measured here: a dtype, device or size that does not exist."""


@dataclass(frozen=True)
class Roof:
    """A rate that the machine reached, best of several runs.

    name: what was run. work: FLOP or bytes of one run. unit: `FLOP` or `B`. samples: the runs.
    threads: CPU threads that computed, 0 on a GPU.
    """

    name: str
    work: int
    unit: str
    dtype: str
    device: str
    threads: int
    samples: Samples

    @property
    def rate(self) -> Quantity:
        """Work over the shortest run, FLOP/s or B/s: a roof is what the machine can do undisturbed."""
        return measured(self.work / self.samples.best.value, f"{self.unit}/s")


def gemm_roof(
    size: int, dtype: str = "fp32", device: str = "cpu", repeats: int = 8, threads: int | None = None
) -> Roof:
    """The compute roof: a square matmul of `size`, 2·size³ FLOP a run.

    dtype: `fp32`, `bf16` or `fp16`, inputs and output. device: `cpu`, `cuda` or `mps`. threads: of
    the CPU, as many as torch uses now unless given; what torch used is set again afterwards.
    Raises `RoofError` for another dtype, an absent device, or a size below 1.
    """
    import torch

    _require(size, dtype, device)
    kind = getattr(torch, DTYPES[dtype])
    a, b = (torch.rand(size, size, device=device).to(kind) for _ in range(2))
    out = torch.empty(size, size, dtype=kind, device=device)
    with _cpu_threads(threads):
        samples = _time(lambda: torch.mm(a, b, out=out), device, repeats)
        return Roof(f"GEMM {size}³", 2 * size**3, "FLOP", dtype, device, _threads(device), samples)


def triad_roof(mib: int, device: str = "cpu", repeats: int = 8, threads: int | None = None) -> Roof:
    """The bandwidth roof: STREAM's triad `a = b + s·c` over three fp32 arrays of `mib` MiB each.

    Counted as STREAM does, two arrays read and one written: 3·mib MiB a run. A CPU that reads a
    line before it writes it moves a third more than is counted here. The arrays should be several
    times the last cache. threads: as in `gemm_roof`. Source: McCalpin, STREAM, counting rules.
    Raises `RoofError` for an absent device or a size below 1.
    """
    import torch

    _require(mib, "fp32", device)
    elements = mib * 2**20 // 4
    b, c = (torch.rand(elements, device=device) for _ in range(2))
    a = torch.empty_like(b)
    with _cpu_threads(threads):
        samples = _time(lambda: torch.add(b, c, alpha=3.0, out=a), device, repeats)
        return Roof(f"triad 3 × {mib} MiB", 3 * 4 * elements, "B", "fp32", device, _threads(device), samples)


def _require(size: int, dtype: str, device: str) -> None:
    import torch

    if not isinstance(size, int) or size < 1:
        raise RoofError(f"a size of {size!r} measures nothing", mend="use a whole number from 1")
    if dtype not in DTYPES:
        raise RoofError(f"there is no dtype {dtype!r}", mend=f"use one of {', '.join(DTYPES)}")
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(device, False):
        here = ", ".join(name for name in DEVICES if there[name])
        raise RoofError(f"this machine has no device {device!r}", mend=f"use one of: {here}")


def _time(call: Callable[[], object], device: str, repeats: int) -> Samples:
    import torch

    wait = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}.get(device, lambda: None)
    return time_call(call, repeats=repeats, warmup=2, synchronize=wait)


@contextmanager
def _cpu_threads(count: int | None) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _threads(device: str) -> int:
    import torch

    return torch.get_num_threads() if device == "cpu" else 0
