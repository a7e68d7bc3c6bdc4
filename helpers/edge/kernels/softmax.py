"""Softmax of each row, online."""

import struct
from typing import TYPE_CHECKING

from helpers.edge import shaders
from helpers.edge.kernels.family import ArgumentError, Call, Family, require_arrays, require_axes, spread

if TYPE_CHECKING:
    from helpers.edge.vulkan import Buffer, Device


class Softmax(Family):
    """exp(x - max) / Σ exp(x - max) of each row. group: invocations that share a row.

    Minus infinity masks a value; a row of nothing else gives NaN, as in PyTorch.
    """

    def __init__(self, device: "Device", group: int = 64):
        super().__init__(device)
        self.group = group
        self.kernel = device.kernel(shaders.spirv("softmax"), {0: group})

    def steps(self, columns: int) -> int:
        """The most values that one invocation reads: for `bounds.softmax_bound`."""
        return -(-columns // self.group)

    def calls(self, x: "Buffer", y: "Buffer") -> tuple[Call, ...]:
        """x, y: fp32 (rows, columns); y may be x."""
        require_arrays("float32", x=x, y=y)
        require_axes("x", x, 2)
        if x.shape != y.shape:
            raise ArgumentError(f"x has the shape {x.shape} and y {y.shape}", mend="use one shape")
        return (Call(self.kernel, spread(x.shape[0]), (x, y), struct.pack("<2I", *x.shape)),)
