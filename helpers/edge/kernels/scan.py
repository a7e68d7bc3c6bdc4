"""Inclusive sums of any length, over several workgroups."""

import math
import struct
from typing import TYPE_CHECKING

from helpers.edge import shaders
from helpers.edge.kernels.family import (
    ArgumentError,
    Call,
    Family,
    require_arrays,
    require_axes,
    require_power_of_two,
    spread,
)
from helpers.edge.kernels.reduction import Way

if TYPE_CHECKING:
    from helpers.edge.vulkan import Buffer, Device


class Scan(Family):
    """y[i] = x[0] + … + x[i], with work that grows as the length does.

    Blocks are scanned side by side, then their totals the same way, and these are added to the
    blocks behind. way: how a workgroup scans its block. group: invocations, a power of two. items:
    values of an invocation. Source: Blelloch, Prefix Sums and Their Applications, 1990.
    """

    def __init__(self, device: "Device", way: str = Way.TREE, group: int = 128, items: int = 4):
        super().__init__(device)
        require_power_of_two("group", group)
        self.way, self.group, self.items = Way(way), group, items
        self.kernel = device.kernel(shaders.spirv(f"scan_{self.way}"), {0: group, 1: items})
        self.offsets = device.kernel(shaders.spirv("scan_offsets"), {0: group})
        self._spare: dict[tuple[int, int], Buffer] = {}

    @property
    def block(self) -> int:
        """Values of a workgroup."""
        return self.group * self.items

    def depth(self, n: int) -> int:
        """The longest chain of additions that a value passes through: for `bounds.scan_bound`."""
        together = 2 * int(math.log2(self.group)) if self.way == Way.TREE else 2 * self.group
        once = 2 * self.items + together
        return once if n <= self.block else once + 1 + self.depth(-(-n // self.block))

    def calls(self, x: "Buffer", y: "Buffer") -> tuple[Call, ...]:
        """x, y: fp32 (n,), not the same buffer."""
        require_arrays("float32", x=x, y=y)
        require_axes("x", x, 1)
        if x.shape != y.shape or x is y:
            raise ArgumentError(f"x has the shape {x.shape} and y {y.shape}", mend="use two buffers of one shape")
        return tuple(self._level(x, y, x.shape[0], 0))

    def _level(self, x: "Buffer", y: "Buffer", n: int, level: int) -> list[Call]:
        blocks = -(-n // self.block)
        totals = self._buffer(level, 0, blocks)
        calls = [Call(self.kernel, spread(blocks), (x, y, totals), struct.pack("<I", n))]
        if blocks > 1:
            sums = self._buffer(level, 1, blocks)
            calls += self._level(totals, sums, blocks, level + 1)
            groups = spread(-(-n // self.group))
            calls.append(Call(self.offsets, groups, (sums, y), struct.pack("<2I", n, self.block)))
        return calls

    def _buffer(self, level: int, which: int, n: int) -> "Buffer":
        """One of two buffers between the dispatches of a level, kept for the next scan of this length."""
        key = (2 * level + which, n)
        if key not in self._spare:
            self._spare[key] = self.device.buffer(n)
        return self._spare[key]
