"""y = alpha · x + y."""

import struct
from typing import TYPE_CHECKING

from helpers.edge import shaders
from helpers.edge.kernels.family import ArgumentError, Call, Family, require_arrays, spread

if TYPE_CHECKING:
    from helpers.edge.vulkan import Buffer, Device


class Saxpy(Family):
    """The saxpy shader on a device. group: invocations of a workgroup."""

    def __init__(self, device: "Device", alpha: float = 1.0, group: int = 64):
        super().__init__(device)
        self.alpha, self.group = alpha, group
        self.kernel = device.kernel(shaders.spirv("saxpy"), {0: group})

    def calls(self, x: "Buffer", y: "Buffer") -> tuple[Call, ...]:
        """x, y: fp32 of one shape; y is read and written."""
        require_arrays("float32", x=x, y=y)
        if x.shape != y.shape:
            raise ArgumentError(f"x has the shape {x.shape} and y {y.shape}", mend="use one shape")
        n = x.nbytes // 4
        groups = -(-n // self.group)
        if spread(groups)[1] > 1:
            raise ArgumentError(
                f"{n} elements need {groups} workgroups of {self.group}", mend="use larger workgroups"
            )
        return (Call(self.kernel, (groups,), (x, y), struct.pack("<If", n, self.alpha)),)
