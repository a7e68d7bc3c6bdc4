"""What a remedy can gain before it is applied: Amdahl's law over the roofline, each with its ceiling.

Every function compares the least times that the roofs allow before and after, so it predicts the gain of a kernel
that stays as far from its roof as it was. Durations measured before and after decide whether it was right.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from helpers.errors import CourseError
from helpers.measure import Quantity, predicted
from helpers.profiling.roofline import Roofline
from helpers.profiling.work import Work, fused


class RemedyError(CourseError):
    """A prediction asked for with a number that makes no sense, as a share above 1."""


@dataclass(frozen=True)
class Gain:
    """A predicted gain; every speed-up is a factor, 1 for no change.

    remedy: its name. part: speed-up of what the remedy changes. ceiling: of the same, however well it is done.
    share: of the step's time that this part had. limiter: what limits the part afterwards, `compute`, `memory`,
    `launch`. why: the reason in words.
    """

    remedy: str
    part: float
    ceiling: float
    share: float
    limiter: str
    why: str

    @property
    def step(self) -> float:
        """Speed-up of the whole step, by Amdahl's law."""
        return amdahl(self.share, self.part)

    @property
    def step_ceiling(self) -> float:
        """Speed-up of the whole step at the part's ceiling."""
        return amdahl(self.share, self.ceiling)

    @property
    def quantity(self) -> Quantity:
        """The step's speed-up, stamped as predicted."""
        return predicted(self.step, "×", f"{self.remedy}: Amdahl over the roofline")


def amdahl(share: float, speedup: float) -> float:
    """Speed-up of a whole of which `share` becomes `speedup` times as fast: 1 / (1 − share + share / speedup).

    share: 0 to 1. speedup: above 0, may be infinite. Raises `RemedyError` for others. Source: Amdahl, Validity
    of the single processor approach, 1967.
    """
    if not 0 <= share <= 1:
        raise RemedyError(f"a share of {share!r} is none", mend="give the part's time over the step's, 0 to 1")
    if not speedup > 0:
        raise RemedyError(f"a speed-up of {speedup!r} is none", mend="give the time before over the time after")
    rest = 1 - share + share / speedup
    return 1 / rest if rest else math.inf


def least_seconds(work: Work, roof: Roofline, launch: float = 0.0) -> float:
    """The least time of one kernel, s: its FLOP at the peak, its bytes at the bandwidth, or its launch."""
    return max(work.flop / roof.peak, work.bytes / roof.bandwidth, launch)


def limiter(work: Work, roof: Roofline, launch: float = 0.0) -> str:
    """Which of the three takes longest: `compute`, `memory` or `launch`."""
    times = {"compute": work.flop / roof.peak, "memory": work.bytes / roof.bandwidth, "launch": launch}
    return max(times, key=times.__getitem__)


def fusion(parts: Sequence[Work], between: int, roof: Roofline, share: float = 1.0, launch: float = 0.0) -> Gain:
    """Several kernels as one: `between` bytes are no longer written by one and read by the next.

    launch: seconds that each kernel takes at least. The ceiling leaves the arithmetic only.
    Raises `RemedyError` without two parts, or when they do not move twice the bytes that lie between them.
    """
    whole = sum(parts, Work(0, 0))
    if len(parts) < 2 or not 0 <= 2 * between <= whole.bytes:
        raise RemedyError(
            f"{len(parts)} kernels that move {whole.bytes} B cannot save {2 * between} B",
            mend="between: bytes of the tensors that one kernel writes and a later one of them reads",
        )
    one = fused(list(parts), between)
    before = sum(least_seconds(part, roof, launch) for part in parts)
    arithmetic = max(whole.flop / roof.peak, launch)
    why = f"{whole.bytes} B in {len(parts)} kernels become {one.bytes} B in one"
    after, most = least_seconds(one, roof, launch), before / arithmetic if arithmetic else math.inf
    return Gain("fusion", before / after, most, share, limiter(one, roof, launch), why)


def quantisation(
    work: Work, weight_bytes: int, before_bits: float, after_bits: float, roof: Roofline, share: float = 1.0
) -> Gain:
    """Weights in fewer bits, multiplied in the same dtype as before: only their bytes shrink.

    weight_bytes: of `work.bytes`. after_bits: with the scales, as 4.5 for 4 bits and a 16-bit scale for 32. The
    ceiling is reached when nothing but weights is moved and nothing else limits.
    Raises `RemedyError` for more weights than bytes, or bits that are not positive.
    """
    if not 0 <= weight_bytes <= work.bytes or not (before_bits > 0 and after_bits > 0):
        raise RemedyError(
            f"{weight_bytes} of {work.bytes} B from {before_bits} to {after_bits} bits is no quantisation",
            mend="weight_bytes is a part of the bytes of the work, and bits are above 0",
        )
    shrunk = round(weight_bytes * after_bits / before_bits)
    after = Work(work.flop, work.bytes - weight_bytes + shrunk)
    gain = least_seconds(work, roof) / least_seconds(after, roof)
    why = f"{weight_bytes} B of weights become {shrunk} B of {work.bytes - weight_bytes + shrunk} B"
    return Gain("quantisation", gain, max(1.0, before_bits / after_bits), share, limiter(after, roof), why)


def batching(
    item: Work, shared_bytes: int, before: int, after: int, roof: Roofline, share: float = 1.0, launch: float = 0.0
) -> Gain:
    """More items at once: `shared_bytes` (the weights) are moved once for all of them.

    item: FLOP and bytes of one item without what is shared. The gain is in items a second, and its ceiling that
    of an endless batch. Raises `RemedyError` for a batch below 1.
    """
    if before < 1 or after < 1:
        raise RemedyError(f"a batch of {min(before, after)} is none", mend="give whole numbers from 1")

    def work(batch: int) -> Work:
        return Work(batch * item.flop, shared_bytes + batch * item.bytes)

    def each(batch: int) -> float:
        return least_seconds(work(batch), roof, launch) / batch

    endless = least_seconds(item, roof)
    most = each(before) / endless if endless else math.inf
    why = f"{shared_bytes} B are moved once for {after} items instead of {before}"
    return Gain("batch", each(before) / each(after), most, share, limiter(work(after), roof, launch), why)


def precision(
    work: Work, before: Roofline, after: Roofline, bytes_ratio: float, share: float = 1.0, launch: float = 0.0
) -> Gain:
    """Another dtype: other roofs, and bytes times `bytes_ratio` (0.5 from bf16 to fp8).

    The ceiling is the larger of the ratios of the roofs for compute and for bytes: a kernel may move from one
    roof to the other. Raises `RemedyError` for a ratio that is not positive.
    """
    if not bytes_ratio > 0:
        raise RemedyError(f"a bytes ratio of {bytes_ratio!r} is none", mend="bytes after over bytes before")
    other = Work(work.flop, round(work.bytes * bytes_ratio))
    gain = least_seconds(work, before, launch) / least_seconds(other, after, launch)
    most = max(after.peak / before.peak, after.bandwidth / before.bandwidth / bytes_ratio)
    why = f"the peak becomes {after.peak / before.peak:.3g} times as high, the bytes {bytes_ratio:g} times as many"
    return Gain("precision", gain, max(most, gain), share, limiter(other, after, launch), why)


def alignment(m: int, n: int, tile_m: int, tile_n: int, units: int, share: float = 1.0) -> Gain:
    """Extents that fill their tiles and waves: what a product of (m, n) loses to partly empty ones.

    tile_m, tile_n: of the result that one block computes. units: blocks that run at once. The gain is the work
    of all tiles in all waves over the useful work, at the same number of useful FLOP; that is its own ceiling.
    It says nothing of slower loads for extents that are no multiple of a vector: measure those.
    Raises `RemedyError` for an extent below 1. Source: NVIDIA, Matrix Multiplication Background, on tile and wave
    quantisation.
    """
    if min(m, n, tile_m, tile_n, units) < 1:
        raise RemedyError("a product without an extent has no tiles", mend="give whole numbers from 1")
    tiles = math.ceil(m / tile_m) * math.ceil(n / tile_n)
    waves = math.ceil(tiles / units)
    lost = waves * units * tile_m * tile_n / (m * n)
    why = f"{m} × {n} fills {100 / lost:.0f} % of {waves} waves of {units} tiles of {tile_m} × {tile_n}"
    return Gain("alignment", lost, lost, share, "compute", why)


def launches(before: int, after: int, launch: float, device_seconds: float, share: float = 1.0) -> Gain:
    """Fewer launches (CUDA graphs, fusion, larger batches) where the host sets the pace.

    before, after: launches a step. launch: seconds of the host for each. device_seconds: what the kernels take
    back to back. The step takes the longer of host and device, so no gain comes once the device is busy.
    Raises `RemedyError` for a negative number, or when nothing takes time.
    """
    host, less = before * launch, after * launch
    if min(before, after, launch, device_seconds) < 0 or not (host or device_seconds) or not (less or device_seconds):
        raise RemedyError("a step of launches and kernels takes time", mend="give counts and seconds from 0 on")
    taken, left = max(host, device_seconds), max(less, device_seconds)
    most = taken / device_seconds if device_seconds else math.inf
    why = f"the host needs {less:.3g} s instead of {host:.3g} s, the device {device_seconds:.3g} s"
    return Gain("launches", taken / left, most, share, "launch" if less > device_seconds else "device", why)
