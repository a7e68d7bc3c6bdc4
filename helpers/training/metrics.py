"""What a step reports, and the peak of its memory."""

import sys
from dataclasses import asdict, dataclass

import psutil
import torch

from helpers.measure import Quantity, measured


@dataclass(frozen=True)
class StepMetrics:
    """One step, the same on every rank but for `peak_bytes`.

    loss: cross-entropy in nats per token, averaged over all ranks' tokens, before the update.
    grad_norm: 2-norm of the whole gradient before clipping. seconds: wall time of the step on this
    rank. tokens: of all ranks. flop_per_second: model FLOP of all ranks per second. mfu: that over
    the machine's measured roof, or None without a roof. peak_bytes: `memory` says what it counts.
    """

    step: int
    loss: float
    grad_norm: float
    seconds: float
    tokens: int
    flop_per_second: float
    mfu: float | None
    peak_bytes: int
    memory: str

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all ranks per second."""
        return self.tokens / self.seconds

    def quantities(self) -> dict[str, Quantity]:
        """The measured numbers with their units."""
        numbers = {
            "loss": measured(self.loss, "nats"),
            "tokens per second": measured(self.tokens_per_second, "tokens/s"),
            "step time": measured(self.seconds, "s"),
            self.memory: measured(self.peak_bytes, "B"),
        }
        return numbers if self.mfu is None else numbers | {"MFU": measured(100 * self.mfu, "%")}

    def to_json(self) -> dict:
        """A plain dict, as written to JSON lines."""
        return asdict(self) | {"tokens_per_second": self.tokens_per_second}

    def __str__(self) -> str:
        mfu = "" if self.mfu is None else f"  MFU {100 * self.mfu:5.1f} %"
        return (
            f"step {self.step:4d}  loss {self.loss:7.4f}  {self.tokens_per_second:9.0f} tokens/s  "
            f"{1e3 * self.seconds:7.1f} ms{mfu}  {self.memory} {self.peak_bytes / 2**20:.0f} MiB"
        )


def peak_memory(device: torch.device) -> tuple[int, str]:
    """Bytes at the peak so far, and what they count.

    On CUDA the allocator's peak of this rank; elsewhere the peak resident set of the process, which
    holds Python and torch too.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device), "peak allocated"
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset, "peak process memory"
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, "peak process memory"
