"""What fills the memory of one rank: one table, by formula, by tracker and by the device's own count."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from helpers.errors import CourseError
from helpers.measure import Quantity, Table, measured, predicted, simulated

PHASES = ("between steps", "after forward", "after backward", "peak")
CATEGORIES = (
    "parameters",
    "gradients",
    "optimizer",
    "unsharded group",
    "all-gather buffer",
    "reduce-scatter buffer",
    "activations",
    "logits",
    "temporaries",
    "total",
)


class LedgerError(CourseError):
    """Lines whose prediction and count are further apart than they may be."""


@dataclass(frozen=True)
class LedgerLine:
    """One category at one moment, in bytes of one rank.

    phase and category: of `PHASES` and `CATEGORIES`. predicted: by `formula`. tracked: by torch's
    FSDPMemTracker. device: by the allocator, for totals only. tolerance: the relative distance from
    the prediction that the others may have; None for a line without a prediction.
    """

    phase: str
    category: str
    predicted: float | None = None
    formula: str = ""
    tolerance: float | None = None
    tracked: int | None = None
    device: int | None = None

    @property
    def counted(self) -> int | None:
        """The tracker's number, or the device's where the tracker has none."""
        return self.tracked if self.tracked is not None else self.device

    @property
    def difference(self) -> float | None:
        """(counted − predicted) / predicted; None when one is missing."""
        if self.counted is None or not self.predicted:
            return None
        return self.counted / self.predicted - 1

    @property
    def holds(self) -> bool:
        """Whether every count lies within the tolerance; a line without a prediction always does."""
        counts = [count for count in (self.tracked, self.device) if count is not None]
        if self.predicted is None or self.tolerance is None:
            return True
        return all(abs(count - self.predicted) <= self.tolerance * self.predicted for count in counts)


@dataclass(frozen=True)
class Ledger:
    """The lines of one rank; `require` is the test that it balances."""

    lines: tuple[LedgerLine, ...]

    def line(self, phase: str, category: str) -> LedgerLine:
        """The line of a phase and category; `LedgerError` when there is none."""
        for line in self.lines:
            if (line.phase, line.category) == (phase, category):
                return line
        raise LedgerError(f"no line {category!r}", where=phase, mend=f"the phases are {', '.join(PHASES)}")

    def filled(self, *, tracked: dict | None = None, device: dict | None = None) -> "Ledger":
        """The same ledger with counts by (phase, category). What was counted and not predicted is added."""
        tracked, device = tracked or {}, device or {}
        keys = {(line.phase, line.category) for line in self.lines}
        added = [LedgerLine(*key) for key in sorted({*tracked, *device} - keys, key=_place)]
        lines = sorted((*self.lines, *added), key=lambda line: _place((line.phase, line.category)))
        return Ledger(
            tuple(
                replace(
                    line,
                    tracked=tracked.get((line.phase, line.category), line.tracked),
                    device=device.get((line.phase, line.category), line.device),
                )
                for line in lines
            )
        )

    def require(self) -> None:
        """Raise `LedgerError` that names every line outside its tolerance."""
        wrong = [line for line in self.lines if not line.holds]
        if wrong:
            first = wrong[0]
            raise LedgerError(
                f"{len(wrong)} lines do not balance; first: predicted {first.predicted:.0f} B by {first.formula}, "
                f"counted {first.counted} B",
                where="; ".join(f"{line.phase}: {line.category}" for line in wrong),
                mend="look for a second copy of something, a dtype, or a group that stayed gathered",
            )

    def table(self, how: str = "") -> Table:
        """Predicted, tracked, device and difference, a row a line.

        how: the stand-in when what the tracker followed was not real; it becomes the stamp.
        """
        rows = (
            (
                line.phase,
                line.category,
                "" if line.predicted is None else predicted(line.predicted, "B", line.formula),
                "" if line.tracked is None else _tracked(line.tracked, how),
                "" if line.device is None else measured(line.device, "B"),
                "" if line.difference is None else f"{100 * line.difference:+.2f} %",
                "" if line.tolerance is None else f"± {100 * line.tolerance:g} %",
                "" if line.predicted is None else ("yes" if line.holds else "NO"),
            )
            for line in self.lines
        )
        headers = ("moment", "what", "predicted", "tracked", "device", "difference", "tolerance", "holds")
        return Table(headers, tuple(rows))


def _tracked(size: int, how: str) -> Quantity:
    return simulated(size, "B", how) if how else measured(size, "B")


def _place(key: tuple[str, str]) -> tuple[int, int]:
    return PHASES.index(key[0]), CATEGORIES.index(key[1])


def training_state(parameters: int, ranks: int) -> Quantity:
    """Bytes of weights, gradients and AdamW's two moments on one of `ranks` fully sharded ranks.

    All four in fp32: 16·N/W. Activations and the group that is gathered at the moment come on top.
    Raises `ValueError` unless both counts are positive.
    """
    if parameters < 1 or ranks < 1:
        raise ValueError(f"{parameters} parameters on {ranks} ranks: both must be positive")
    return predicted(16 * parameters / ranks, "B", "16 N / W")


def totals(lines: Iterable[LedgerLine]) -> float:
    """Predicted bytes of some lines together."""
    return sum(line.predicted or 0 for line in lines)
