"""Sets of time as arrays: sorted disjoint intervals, their union, length and common part."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Spans:
    """Sorted disjoint intervals of positive length. start and end: int64 nanoseconds (N,)."""

    start: np.ndarray
    end: np.ndarray

    def __len__(self) -> int:
        return len(self.start)

    @property
    def length(self) -> int:
        """Nanoseconds covered."""
        return int((self.end - self.start).sum())

    def __or__(self, other: "Spans") -> "Spans":
        """The time in either."""
        return cover(np.concatenate([self.start, other.start]), np.concatenate([self.end, other.end]))

    def shared(self, other: "Spans") -> int:
        """Nanoseconds that lie in both: |A| + |B| - |A ∪ B|."""
        return self.length + other.length - (self | other).length

    def touches(self, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """A mask of the intervals (start, end) that share some time with this set (M,)."""
        ended, begun = np.searchsorted(self.end, start, side="right"), np.searchsorted(self.start, end, side="left")
        return (ended < begun) & (start < end)

    def within(self, window: tuple[int, int]) -> "Spans":
        """The part between two times."""
        return cover(np.clip(self.start, *window), np.clip(self.end, *window))

    def gaps(self, window: tuple[int, int]) -> "Spans":
        """The time between two times that is not covered."""
        inside = self.within(window)
        starts = np.concatenate([[window[0]], inside.end]).astype(np.int64)
        return cover(starts, np.concatenate([inside.start, [window[1]]]).astype(np.int64))

    def seconds(self) -> tuple[tuple[float, float], ...]:
        """(start, end) pairs in seconds."""
        return tuple(zip((self.start / 1e9).tolist(), (self.end / 1e9).tolist()))


def cover(start: np.ndarray, end: np.ndarray) -> Spans:
    """The union of intervals in any order, overlapping or touching; those of no length vanish."""
    some = start < end
    order = np.argsort(start[some], kind="stable")
    start, end = start[some][order], np.maximum.accumulate(end[some][order]) if some.any() else end[some]
    new = np.ones(len(start), bool)
    new[1:] = start[1:] > end[:-1]
    last = np.roll(new, -1)
    return Spans(start[new], end[last])
