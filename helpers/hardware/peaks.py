"""Peak rates of GPUs: dense, with the accumulate type, the clock and the source of every number."""

import difflib
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from helpers.errors import CourseError
from helpers.measure import Quantity, predicted

FILE = Path(__file__).with_name("peaks.json")
DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8")
FP32_LANES = {(7, 0): 64, (7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 9): 128, (9, 0): 128, (10, 0): 128, (12, 0): 128}


class PeakError(CourseError):
    """A peak that the table cannot give: no dtype, a dtype that the GPU lacks, or a GPU that it does not hold."""


@dataclass(frozen=True)
class Source:
    """Where a number was read.

    name: of the page, file or report. date: ISO, of the version that was read, '' where unknown.
    verified: False for a number that rests on memory or inference only.
    """

    name: str
    date: str
    verified: bool


@dataclass(frozen=True)
class Peak:
    """One rate of one GPU.

    value: FLOP/s (for int8 operations/s) without sparsity, a multiply-add counted as two; or B/s for
    the bandwidth. dtype: of the inputs, '' for the bandwidth. accumulate: type of the sum. dense: always
    True, said aloud because many published figures are not. clock: the clock that the number holds at.
    """

    gpu: str
    value: float
    unit: str
    dtype: str
    accumulate: str
    clock: str
    source: Source
    dense: bool = True

    @property
    def quantity(self) -> Quantity:
        """The number with its conditions in the stamp: no datasheet figure was measured here."""
        kind = f"{self.dtype}→{self.accumulate}, dense, " if self.dtype else ""
        doubt = "" if self.source.verified else ", unverified"
        return predicted(self.value, self.unit, f"{self.gpu}, {kind}{self.clock} clock, {self.source.name}{doubt}")


@dataclass(frozen=True)
class Gpu:
    """One row of the table.

    names: what its driver calls it. sparse: whether the matrix units have a 2:4 sparse mode, whose peak is
    twice as high. peaks: by (dtype, accumulate). achievable: likewise, the best matmul that someone measured.
    """

    name: str
    vendor: str
    names: tuple[str, ...]
    sparse: bool
    note: str
    bandwidth: Peak
    peaks: dict[tuple[str, str], Peak]
    achievable: dict[tuple[str, str], Peak]


def gpu_names() -> tuple[str, ...]:
    """The names of all GPUs of the table."""
    return tuple(gpu.name for gpu in _table().values())


def find_gpu(name: str) -> Gpu:
    """The row of a GPU by its name here or the name that its driver reports (`NVIDIA H100 80GB HBM3`).

    Case, spaces, dashes and the maker's name do not matter. Raises `PeakError` with the nearest names for
    an unknown one, and for one that fits several models, as `H100`, whose peaks differ.
    """
    wanted = _plain(name)
    if wanted in _index():
        return _table()[_index()[wanted]]
    models = [gpu for gpu in gpu_names() if wanted and _plain(gpu).startswith(wanted)]
    near = difflib.get_close_matches(wanted, _index(), n=4, cutoff=0.5)
    near = models or list(dict.fromkeys(_index()[key] for key in near)) or list(gpu_names())
    trouble = "names several models, whose peaks differ" if len(models) > 1 else "is not in the table of peaks"
    raise PeakError(f"the GPU {name!r} {trouble}", mend=f"use one of: {', '.join(near)}")


def peak(gpu: str, dtype: str | None = None, accumulate: str | None = None) -> Peak:
    """The dense peak of `gpu` for inputs of `dtype`, FLOP/s (int8: operations/s).

    dtype: one of `DTYPES`; `fp32` is the vector units', `tf32` the matrix units'. accumulate: the type of
    the sum, by default fp32, or what the dtype only has (fp64, int32); on GeForce cards fp16 sums run
    twice as fast as fp32 sums. Raises `PeakError` without a dtype (a peak without one means nothing), for
    one that the GPU lacks, for an accumulate type that it lacks, and as `find_gpu`.
    """
    row = find_gpu(gpu)
    return _pick(row, row.peaks, dtype, accumulate)


def dtypes(gpu: str) -> tuple[str, ...]:
    """The dtypes that the table holds a peak of, for `gpu`; errors as in `find_gpu`."""
    return tuple(dict.fromkeys(dtype for dtype, _ in find_gpu(gpu).peaks))


def achievable(gpu: str, dtype: str | None = None, accumulate: str | None = None) -> Peak | None:
    """The best matmul rate that someone measured, FLOP/s, or None where none is known; errors as in `peak`."""
    row = find_gpu(gpu)
    _pick(row, row.peaks, dtype, accumulate)
    return row.achievable.get((dtype, accumulate or DEFAULT.get(dtype, "fp32")))


def bandwidth(gpu: str) -> Peak:
    """The peak rate of the GPU's memory, B/s; errors as in `find_gpu`."""
    return find_gpu(gpu).bandwidth


DEFAULT = {"fp64": "fp64", "int8": "int32"}


def _pick(row: Gpu, cells: dict, dtype: str | None, accumulate: str | None) -> Peak:
    has = dtypes(row.name)
    if dtype is None:
        raise PeakError(
            f"the peak of a {row.name} needs a dtype: it has one for each", mend=f"name one of: {', '.join(has)}"
        )
    if dtype not in DTYPES:
        raise PeakError(f"there is no dtype {dtype!r}", mend=f"use one of {', '.join(DTYPES)}")
    if dtype not in has:
        note = f" ({row.note})" if row.note else ""
        raise PeakError(f"the table holds no {dtype} peak of a {row.name}{note}", mend=f"it has {', '.join(has)}")
    wanted = accumulate or DEFAULT.get(dtype, "fp32")
    if (dtype, wanted) not in cells:
        sums = ", ".join(kind for name, kind in cells if name == dtype)
        raise PeakError(
            f"the table holds no {dtype} peak of a {row.name} with sums in {wanted}", mend=f"it has {sums}"
        )
    return cells[dtype, wanted]


def doubts(gpu: str, dtype: str, claimed: float, tolerance: float = 0.03) -> tuple[str, ...]:
    """What a peak that someone else states (FLOP/s) probably is, when it is not the dense one; () when it is.

    Names the sparse figure, half of the dense one, the same dtype with another accumulate type, another
    dtype's peak and another model's. Source: peaks found in public training code, each one wrong this way.
    """
    row, true = find_gpu(gpu), peak(gpu, dtype)

    def like(value: float) -> bool:
        return abs(claimed - value) <= tolerance * value

    if like(true.value):
        return ()
    found = []
    if row.sparse and like(2 * true.value):
        found.append(f"it is the figure with 2:4 sparsity: dense is {true.value / 1e12:g}e12")
    if like(true.value / 2):
        found.append("it is half of the dense peak: a dense figure was halved as if it were sparse")
    for (kind, total), cell in row.peaks.items():
        if like(cell.value) and (kind, total) != (true.dtype, true.accumulate) and kind != "int8":
            found.append(f"it is the {kind} peak with sums in {total}")
    family = row.name.split()[0]
    for other in _table().values():
        same = other is not row and other.name.split()[0] == family
        cell = other.peaks.get((true.dtype, true.accumulate))
        if same and cell and like(cell.value):
            found.append(f"it is the peak of the {other.name}")
    return tuple(found) or (f"it is no figure of a {row.name} that the table knows",)


def fp32_from_attributes(sm_count: int, clock_hz: float, capability: tuple[int, int]) -> float:
    """The fp32 peak, FLOP/s, from what a device reports of itself: lanes · SMs · clock · 2.

    clock_hz: the highest SM clock (`clock_rate` is in kHz). Lanes per SM by compute capability: CUDA C
    Programming Guide, throughput of arithmetic instructions. Raises `PeakError` for an unknown capability.
    """
    if tuple(capability) not in FP32_LANES:
        known = ", ".join(f"{major}.{minor}" for major, minor in FP32_LANES)
        raise PeakError(f"the fp32 lanes of compute capability {capability} are not known", mend=f"known: {known}")
    return 2.0 * FP32_LANES[tuple(capability)] * sm_count * clock_hz


def bandwidth_from_attributes(memory_clock_hz: float, bus_bits: int) -> float:
    """The memory's peak, B/s, from what a device reports: two transfers a clock over the bus."""
    return 2.0 * memory_clock_hz * bus_bits / 8


def _plain(name: str) -> str:
    words = re.sub(r"[^a-z0-9]+", " ", str(name).lower()).split()
    return "".join(word for word in words if word not in ("nvidia", "geforce", "tesla", "amd", "instinct", "apple"))


@cache
def _index() -> dict[str, str]:
    return {_plain(key): gpu.name for gpu in _table().values() for key in (gpu.name, *gpu.names)}


@cache
def _table() -> dict[str, Gpu]:
    content = json.loads(FILE.read_text(encoding="utf-8"))
    sources = {key: Source(**value) for key, value in content["sources"].items()}
    return {row["name"]: _row(row, sources) for row in content["gpus"]}


def _row(row: dict, sources: dict[str, Source]) -> Gpu:
    def cells(key: str) -> dict[tuple[str, str], Peak]:
        return {
            (dtype, total): Peak(row["name"], tera * 1e12, "FLOP/s", dtype, total, row["clock"], sources[source])
            for dtype, total, tera, source in row[key]
        }

    giga, source = row["bandwidth"]
    memory = Peak(row["name"], giga * 1e9, "B/s", "", "", row["clock"], sources[source])
    names = tuple(row["names"])
    return Gpu(
        row["name"], row["vendor"], names, row["sparsity"], row["note"], memory, cells("peaks"), cells("achievable")
    )
