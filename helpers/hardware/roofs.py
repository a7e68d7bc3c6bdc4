"""Measured roofs: how fast this machine multiplies matrices, and how fast it moves bytes."""

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from helpers.errors import CourseError
from helpers.measure import Quantity, Samples, measured, time_call

DTYPES = {
    "fp64": "float64",
    "fp32": "float32",
    "tf32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "int8": "int8",
}
DEVICES = ("cpu", "cuda", "mps")
READ_BYTES = {"cpu": 2**26, "cuda": 2**34, "mps": 2**32}
SMALLEST_SET = {"cpu": 2**13, "cuda": 2**16, "mps": 2**20}
ROOF_SECONDS = 0.3
ENOUGH = 0.75


class RoofError(CourseError):
    """A roof that cannot be measured here: a dtype, device or size that does not exist."""


@dataclass(frozen=True)
class Roof:
    """A rate that the machine reached, best of several runs.

    name: what was run. work: FLOP or bytes of one run. unit: `FLOP` or `B`. samples: the runs.
    threads: CPU threads that computed, 0 on a GPU. busy: seconds of processor time that all of them got.
    """

    name: str
    work: int
    unit: str
    dtype: str
    device: str
    threads: int
    samples: Samples
    busy: float = 0.0

    @property
    def rate(self) -> Quantity:
        """Work over the shortest run, FLOP/s or B/s: a roof is what the machine can do undisturbed."""
        return measured(self.work / self.samples.best.value, f"{self.unit}/s")

    @property
    def share(self) -> float:
        """How much of `threads` processors the runs got, 0 to 1: less than 1 where other work ran too."""
        return min(1.0, self.busy / (self.threads * sum(self.samples.seconds))) if self.threads else 1.0

    @property
    def caution(self) -> str:
        """What makes the number doubtful, '' when nothing does: threads that had no processor much of the time."""
        if self.share >= ENOUGH:
            return ""
        got = f"its threads had {100 * self.share:.0f} % of their processors"
        return f"{self.name}: {got}, so other work ran, or this is too small to share: the roof is at least this high"


@dataclass(frozen=True)
class Level:
    """One level of the memory hierarchy: what of it was measured.

    name: `L1`, `L2`, `L3`, `DRAM`; or `L3 or DRAM` where no set that was read is larger than the caches.
    size: bytes that it holds, 0 for memory. working_set: bytes of the set that was read fastest. roof: its rate.
    """

    name: str
    size: int
    working_set: int
    roof: Roof


@dataclass(frozen=True)
class CacheRoofs:
    """Read rates over the size of the set that is read again and again.

    sweep: (bytes of the set, rate), the smallest first. levels: the plateaus, the nearest level first; only
    the last one where the size of the caches is not known.
    """

    sweep: tuple[tuple[int, Roof], ...]
    levels: tuple[Level, ...]


def gemm_roof(
    size: int, dtype: str = "fp32", device: str = "cpu", repeats: int = 8, threads: int | None = None
) -> Roof:
    """The compute roof: a square matmul of `size`, 2·size³ FLOP a run.

    dtype: `fp64`, `fp32`, `bf16` or `fp16`, inputs and output; `tf32` multiplies fp32 matrices with tf32
    products (CUDA only); `int8` sums in int32, and its operations are counted as FLOP. device: `cpu`,
    `cuda` or `mps`. threads: of the CPU, as many as torch uses now unless given; what torch used is set
    again afterwards. Raises `RoofError` for a dtype that does not exist or that the device does not
    multiply, an absent device, or a size below 1. repeats: runs at least; short runs are repeated for about
    a third of a second, so that a moment's disturbance does not hit all of them.
    """
    _require(size, dtype, device)
    with _cpu_threads(threads), _products_in(dtype):
        runs = _time(_product(size, dtype, device), device, repeats, at_least=ROOF_SECONDS)
        return Roof(f"GEMM {size}³", 2 * size**3, "FLOP", dtype, device, _threads(device), *runs)


_OTHER = "leave this dtype out, or use gemm_roofs, which measures those that the device does"


def gemm_roofs(size: int, device: str = "cpu", repeats: int = 8, threads: int | None = None) -> tuple[Roof, ...]:
    """The compute roofs of every dtype that `device` multiplies; arguments and errors as in `gemm_roof`."""
    return tuple(gemm_roof(size, dtype, device, repeats, threads) for dtype in gemm_dtypes(device))


def gemm_dtypes(device: str = "cpu") -> tuple[str, ...]:
    """The dtypes that `device` multiplies here, found by trying; `RoofError` for an absent device."""
    _require(1, "fp32", device)
    found = []
    for dtype in DTYPES:
        # 32 rows: the int8 product of CUDA wants more than 16.
        with suppress(RoofError):
            _product(32, dtype, device)
            found.append(dtype)
    return tuple(found)


def _product(size: int, dtype: str, device: str) -> Callable[[], object]:
    """A call that multiplies once, tried once; `RoofError` when the device does not do it."""
    try:
        call = _matrices(size, dtype, device)
        call()
    except (RuntimeError, TypeError, AttributeError) as error:
        reason = str(error).splitlines()[0][:160]
        raise RoofError(f"{device} does not multiply {dtype} matrices of {size}: {reason}", mend=_OTHER) from None
    return call


def _matrices(size: int, dtype: str, device: str) -> Callable[[], object]:
    import torch

    if dtype == "tf32" and device != "cuda":
        raise RuntimeError("tf32 is a mode of NVIDIA's matrix units")
    if dtype == "int8":
        a, b = (torch.randint(-8, 8, (size, size), dtype=torch.int8, device=device) for _ in range(2))
        return lambda: torch._int_mm(a, b)
    kind = getattr(torch, DTYPES[dtype])
    a, b = (torch.rand(size, size, device=device).to(kind) for _ in range(2))
    out = torch.empty(size, size, dtype=kind, device=device)
    return lambda: torch.mm(a, b, out=out)


@contextmanager
def _products_in(dtype: str) -> Iterator[None]:
    """fp32 means fp32: without this, a setting made elsewhere decides whether tf32 computes it."""
    import torch

    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


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
        runs = _time(lambda: torch.add(b, c, alpha=3.0, out=a), device, repeats, at_least=ROOF_SECONDS)
        return Roof(f"triad 3 × {mib} MiB", 3 * 4 * elements, "B", "fp32", device, _threads(device), *runs)


def cache_roofs(
    device: str = "cpu", rounds: int = 5, threads: int | None = 1, largest: int | None = None
) -> CacheRoofs:
    """The bandwidth roofs of each cache level: a set of fp32 values is summed again and again.

    A set that fits a cache is read from it. Only reads are counted, bytes of the set times its readings;
    on a CPU each thread reads the whole set. Sizes go from 8 KiB (64 KiB on CUDA, 1 MiB on MPS) in steps of
    about 1.4 (of 2 from 16 MiB on) to twice the last cache, or an eighth of memory where that is less. All
    sizes are measured once a round, so that a disturbance hits each size in one round only; sizes at
    which other work held processors are measured in more rounds, twice as many at most. Of a set larger
    than 64 MiB a part is timed after the whole was read. threads: of the CPU; 1 shows one core, None takes as
    many as torch uses. largest: bytes of the largest set, to cut the sweep short.
    Raises `RoofError` for an absent device or fewer than one round.
    """
    import torch

    _require(rounds, "fp32", device)
    caches = cache_sizes(device)
    sizes = _set_sizes(device, largest or _largest_set(device, caches))
    values = torch.ones(sizes[-1] // 4, device=device)
    with _cpu_threads(threads):
        seconds: dict[int, list[float]] = {size: [] for size in sizes}
        busy = dict.fromkeys(sizes, 0.0)
        for turn in range(2 * rounds):
            for size in sizes:
                if turn < rounds or _read_roof(size, device, seconds[size], busy[size]).caution:
                    samples, worked = _read(values[: size // 4], device)
                    seconds[size] += samples.seconds
                    busy[size] += worked
        sweep = tuple((size, _read_roof(size, device, seconds[size], busy[size])) for size in sizes)
    return CacheRoofs(sweep, plateaus(sweep, caches))


def _set_sizes(device: str, largest: int) -> list[int]:
    """Multiples of 4 up to `largest`, two an octave and one from 16 MiB on; the largest is the last."""
    steps = [int(SMALLEST_SET[device] * 2 ** (step / 2)) // 4 * 4 for step in range(80)]
    dense = [size for size in steps if size <= min(largest, 2**24)]
    sparse = [2**power for power in range(25, 64) if 2**power <= largest]
    return sorted({*dense, *sparse, max(4, largest // 4 * 4)})


def _read_roof(size: int, device: str, seconds: list[float], busy: float) -> Roof:
    work = min(size, READ_BYTES[device]) * _readings(size, device)
    name = f"read {size / 1024:.0f} KiB"
    return Roof(name, work, "B", "fp32", device, _threads(device), Samples(tuple(seconds)), busy)


def _readings(size: int, device: str) -> int:
    """How often a set is read in one run: often enough that starting the run does not count."""
    return max(1, READ_BYTES[device] // size)


def _read(values, device: str) -> tuple[Samples, float]:
    """Time one run of reading a set, after it was read: rows of a view with stride 0 are the same memory."""
    times = _readings(4 * len(values), device)
    if device == "mps":
        # There a view with stride 0 may be copied out first: many launches instead of one.
        return _time(lambda: [values.sum() for _ in range(times)], device, 1, warmup=1)
    if times > 1:
        rows = values.expand(times, len(values))
        return _time(lambda: rows.sum(1), device, 1, warmup=1)
    values.sum()
    part = values[: READ_BYTES[device] // 4]
    return _time(lambda: part.sum(), device, 1, warmup=0)


def plateaus(sweep: tuple[tuple[int, Roof], ...], caches: dict[str, int]) -> tuple[Level, ...]:
    """The best rate of each level: of a cache, among the sets that fit it and not the one before it."""
    levels, below = [], 0
    for name, size in caches.items():
        fits = [(roof.rate.value, working) for working, roof in sweep if 1.5 * below < working <= 0.75 * size]
        levels += [Level(name, size, working, dict(sweep)[working]) for _, working in sorted(fits)[-1:]]
        below = size
    beyond = [entry for entry in sweep if entry[0] >= 2 * below]
    name = "DRAM" if beyond else f"{list(caches)[-1]} or DRAM"
    working, roof = max(beyond or sweep[-1:], key=lambda entry: entry[1].rate.value)
    return (*levels, Level(name, 0, working, roof))


def _largest_set(device: str, caches: dict[str, int]) -> int:
    import torch

    memory = torch.cuda.mem_get_info()[0] if device == "cuda" else psutil.virtual_memory().available
    wanted = max(2**28, 2 * max(caches.values(), default=0))
    return min(wanted, memory // 8)


def cache_sizes(device: str = "cpu") -> dict[str, int]:
    """Bytes of the caches that hold data, `L1` first, as one core or the GPU sees them; {} where unknown.

    Of a CPU as the system reports them (a virtual machine may name a cache that it shares); of CUDA the L2.
    """
    import torch

    if device == "cuda":
        return {"L2": torch.cuda.get_device_properties(0).L2_cache_size}
    if device == "cpu":
        return _mac_caches() if sys.platform == "darwin" else _linux_caches()
    return {}


def _linux_caches(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> dict[str, int]:
    found = {}
    for index in sorted(folder.glob("index*")):
        try:
            level, kind, size = ((index / key).read_text().strip() for key in ("level", "type", "size"))
        except OSError:
            continue
        amount = re.fullmatch(r"(\d+)([KMG]?)", size)
        if kind != "Instruction" and amount:
            found[f"L{level}"] = int(amount[1]) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[amount[2]]
    return dict(sorted(found.items()))


def _mac_caches() -> dict[str, int]:
    found = {}
    for name, key in (("L1", "hw.perflevel0.l1dcachesize"), ("L2", "hw.perflevel0.l2cachesize")):
        answer = subprocess.run(["sysctl", "-n", key], capture_output=True, text=True, check=False)
        if answer.stdout.strip().isdigit():
            found[name] = int(answer.stdout)
    return found


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


def _time(
    call: Callable[[], object], device: str, repeats: int, warmup: int = 2, at_least: float = 0.0
) -> tuple[Samples, float]:
    """`repeats` runs or more, and the seconds of processor time that the process got in them.

    Runs go on until `at_least` seconds have passed, and four times as long while other work holds processors.
    """
    import torch

    wait = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}.get(device, lambda: None)
    for _ in range(warmup):
        call()
    threads, runs, passed, start = _threads(device), [], 0.0, time.process_time()
    busy = 0.0
    while len(runs) < repeats or passed < at_least or (busy < ENOUGH * threads * passed < 4 * at_least * threads):
        runs += time_call(call, repeats=1, warmup=0, synchronize=wait).seconds
        passed += runs[-1]
        busy = time.process_time() - start
    return Samples(tuple(runs)), busy


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
