"""Step 4: what the path can reach at all, and where the kernel stands under its roof."""

from dataclasses import dataclass, replace

from helpers.profiling.counters.record import KernelRecord
from helpers.profiling.diagnosis.context import Context
from helpers.profiling.diagnosis.evidence import (
    Use,
    busiest_first,
    dram_bytes,
    dram_peak,
    fp32_peak,
    fp32_rate,
    value,
)
from helpers.profiling.diagnosis.verdict import Level


@dataclass(frozen=True)
class RoofOpinion:
    """A kernel under its roofline.

    intensity: FLOP per byte of DRAM. rate: FLOP/s. roof: FLOP/s that compute and DRAM allow at this intensity.
    by_bandwidth: DRAM's roof is the lower of the two here.
    """

    intensity: float
    rate: float
    roof: float
    by_bandwidth: bool

    @property
    def share(self) -> float:
        """Of the roof at the measured intensity, 1 is all of it; never of the peak alone."""
        return self.rate / self.roof


def roof_opinion(record: KernelRecord, context: Context) -> RoofOpinion | None:
    """Where the kernel stands by its FLOP and bytes; None where FLOP, bytes or a roof is not known, or FLOP are zero.

    FLOP and compute roof come together: from the context, or else from the FP32 counters.
    """
    duration, moved = value(record, "duration"), dram_bytes(record)
    rate, peak = _work(record, context, duration)
    bandwidth = context.bandwidth or dram_peak(record)
    if not duration or not moved or not bandwidth or not rate or not peak:
        return None
    intensity = rate * duration / moved
    by_bandwidth = bandwidth * intensity < peak
    return RoofOpinion(intensity, rate, bandwidth * intensity if by_bandwidth else peak, by_bandwidth)


def _work(record: KernelRecord, context: Context, duration: float | None) -> tuple[float | None, float | None]:
    if context.flop is not None and context.peak is not None:
        clock = value(record, "sm_clock")
        scale = clock / context.peak_clock if context.peak_clock and clock else 1.0
        return (context.flop / duration if duration else None), context.peak * scale
    return fp32_rate(record), fp32_peak(record)


def tensor_path(record: KernelRecord, context: Context) -> float | None:
    """Share of the tensor pipe's peak that the kernel's path reaches at best; None where nothing is known of it."""
    if context.tensor_rate is None and context.achievable is None:
        return None
    return (context.tensor_rate or 1.0) * (context.achievable or 1.0)


def rescaled(uses: tuple[Use, ...], path: float | None) -> tuple[Use, ...]:
    """The uses with the tensor pipe's percentage against what the path can reach, the busiest first."""
    if path is None:
        return uses
    tensor = [use for use in uses if use.level is Level.TENSOR]
    others = [use for use in uses if use.level is not Level.TENSOR]
    scaled = [replace(use, percent=use.percent / path, metric=f"{use.metric} / {path:.3g}") for use in tensor]
    return busiest_first((*others, *scaled))
