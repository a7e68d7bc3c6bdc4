"""One kernel as the counters saw it, whatever file it was read from."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from helpers.errors import CourseError
from helpers.measure.quantity import Quantity, recorded


class CounterError(CourseError):
    """A report that cannot be read whole, or a counter that is not there."""


@dataclass(frozen=True)
class Source:
    """Where a record came from.

    file: its name. tool: as `ncu 2023.1.1`, or '' where the file does not say. date: ISO, of the
    recording where it is known, else ''. origin: repository, commit and licence of a published report.
    """

    file: str
    tool: str = ""
    date: str = ""
    origin: str = ""


@dataclass(frozen=True)
class KernelRecord:
    """One launch of a kernel.

    name: demangled. device: as `NVIDIA A40`, '' where unknown. capability: compute capability, as
    (8, 6), or None. grid and block: (x, y, z) blocks and threads, () where unknown. metrics: by the
    tool's own name, each in the base unit of its kind: s, B, Hz, B/s, percent from 0 to 100, or a plain
    number. A counter whose collection failed is there as NaN (`failed` names it); one that was not asked for
    is absent. rules: what the tool's own rules said, (rule, message) in order. breakdowns: for a throughput,
    by its metric name, the metrics whose maximum it is; {} where the file does not say. source: the file.
    what: a sentence about a kernel that the course ships, else ''.
    """

    name: str
    device: str = ""
    capability: tuple[int, int] | None = None
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    rules: tuple[tuple[str, str], ...] = ()
    source: Source = field(default_factory=lambda: Source(""))
    breakdowns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    what: str = ""

    @property
    def failed(self) -> tuple[str, ...]:
        """The metrics whose collection failed: they are in the file as NaN."""
        return tuple(name for name, value in self.metrics.items() if math.isnan(value))

    def breakdown(self, need: str) -> tuple[tuple[str, float], ...]:
        """(metric, percent) of the parts of a throughput such as `memory_percent`, the largest first.

        () where the file does not list them. Parts that were not collected, or that failed, are left out.
        """
        from helpers.profiling.counters.aliases import spellings

        names = next((self.breakdowns[name] for name in spellings(need) if name in self.breakdowns), ())
        parts = [(name, self.metrics[name]) for name in names if math.isfinite(self.metrics.get(name, math.nan))]
        return tuple(sorted(parts, key=lambda part: -part[1]))

    def get(self, need: str) -> float | None:
        """The value of a need of `aliases.NEEDS` (as `dram_percent`), or None when no spelling of it is there.

        NaN when it was asked for and its collection failed. Raises `CounterError` for a need that does not exist.
        """
        from helpers.profiling.counters.aliases import spellings

        found = [self.metrics[name] for name in spellings(need) if name in self.metrics]
        finite = [value for value in found if math.isfinite(value)]
        return (finite or found or [None])[0]

    def require(self, need: str) -> float:
        """The finite value of a need; `CounterError` that names the spellings when it is absent or failed."""
        from helpers.profiling.counters.aliases import spellings

        value = self.get(need)
        if value is None or not math.isfinite(value):
            state = "was not collected" if value is None else "could not be collected: NaN"
            raise CounterError(
                f"{need} {state}",
                where=f"{self.name[:60]} in {self.source.file}",
                mend=f"collect one of {', '.join(spellings(need))}, or use another kernel",
            )
        return value

    def quantity(self, need: str) -> Quantity:
        """A need as a number to show, with the stamp of its recording. Raises `CounterError` as `require` does."""
        from helpers.profiling.counters.aliases import unit

        return recorded(
            self.require(need),
            unit(need),
            device=self.device or "unnamed GPU",
            date=self.source.date or "date unknown",
            tool=self.source.tool or "ncu",
        )
