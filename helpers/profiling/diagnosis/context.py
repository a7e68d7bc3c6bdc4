"""What the counters of a kernel do not know, and its caller may."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from helpers.errors import CourseError
from helpers.hardware.peaks import achievable, bandwidth, find_gpu, peak
from helpers.profiling.counters.record import KernelRecord

if TYPE_CHECKING:
    from helpers.profiling.breakdown import Breakdown

SIXTEEN_BITS = ("fp16", "bf16")


class DiagnosisError(CourseError):
    """A context that cannot be true."""


@dataclass(frozen=True)
class Host:
    """How the program's trace looks around the kernels.

    busy: share of the wall time in which the device ran something, 0 to 1. kernel: seconds of the median kernel.
    launch: seconds that the host takes to launch one, 0 where it is not known. tool: what recorded
    the trace, and the date where it is known.
    """

    busy: float
    kernel: float
    launch: float
    tool: str = "torch.profiler"
    date: str = "date unknown"

    def __post_init__(self):
        if not 0 <= self.busy <= 1:
            raise DiagnosisError(f"busy is {self.busy!r}, not a share", mend="hand in a number from 0 to 1")
        _positive(self, ("kernel",))
        if not 0 <= self.launch < math.inf:
            raise DiagnosisError(f"launch is {self.launch!r}", mend="hand in seconds, or 0 where it is not known")


def host_of(breakdown: "Breakdown") -> Host:
    """The host around the kernels of a trace. Raises `DiagnosisError` for a trace in which no kernel ran."""
    if not breakdown.kernels:
        raise DiagnosisError("no kernel ran in this part of the trace", mend="break down a trace of a GPU")
    return Host(breakdown.busy_share, breakdown.kernel, breakdown.launch)


@dataclass(frozen=True)
class Context:
    """Each is None where it is not known, and a verdict then rests on the counters alone.

    bandwidth: B/s of DRAM. peak: FLOP/s of the path that the kernel takes (dtype and accumulate type, dense).
    peak_clock: Hz at which `peak` holds; None for the clock at which the kernel ran. flop: of this launch, by a work
    model. compulsory_bytes: what the launch must move at least. tensor_rate: share of the tensor pipe's peak that
    the path can reach, 0.5 for an accumulate type of half rate. achievable: share of the path's peak that the
    best measured kernel reaches. host: of the trace.
    """

    bandwidth: float | None = None
    peak: float | None = None
    peak_clock: float | None = None
    flop: float | None = None
    compulsory_bytes: float | None = None
    tensor_rate: float | None = None
    achievable: float | None = None
    host: Host | None = None

    def __post_init__(self):
        _positive(self, ("bandwidth", "peak", "peak_clock", "compulsory_bytes", "tensor_rate", "achievable"))
        if self.flop is not None and not 0 <= self.flop < math.inf:
            raise DiagnosisError(f"flop is {self.flop!r}", mend="hand in a count, or leave it out")
        for name in ("tensor_rate", "achievable"):
            if (getattr(self, name) or 0) > 1:
                raise DiagnosisError(f"{name} is {getattr(self, name)!r}, above 1", mend="hand in a share")


def _positive(record: object, names: tuple[str, ...]) -> None:
    for name in names:
        value = getattr(record, name)
        if value is not None and not 0 < value < math.inf:
            raise DiagnosisError(f"{name} is {value!r}", mend="hand in a positive number, or leave it out")


def path_context(record: KernelRecord, dtype: str, accumulate: str | None = None, **known: object) -> Context:
    """The context of a kernel that computes in `dtype`, from the table of peaks; `known` fills the other fields.

    The datasheet's peak holds at the rated clock of the record. Raises `PeakError` for a device that the table lacks,
    and for a dtype or accumulate type that the device lacks.
    """
    path = peak(record.device, dtype, accumulate)
    kinds = SIXTEEN_BITS if dtype in SIXTEEN_BITS else (dtype,)
    fastest = max(cell.value for (kind, _), cell in find_gpu(record.device).peaks.items() if kind in kinds)
    best = achievable(record.device, dtype, accumulate)
    return Context(
        bandwidth=bandwidth(record.device).value,
        peak=path.value,
        peak_clock=record.get("attribute_clock_rate"),
        tensor_rate=path.value / fastest,
        achievable=best.value / path.value if best else None,
        **known,
    )
