"""RMSNorm of each row, alone or fused with the residual before it."""

import struct
from typing import TYPE_CHECKING

from helpers.edge import shaders
from helpers.edge.kernels.family import (
    ArgumentError,
    Call,
    Family,
    require_arrays,
    require_axes,
    require_shape,
    spread,
)

if TYPE_CHECKING:
    from helpers.edge.vulkan import Buffer, Device


class RmsNorm(Family):
    """y = x / sqrt(mean(x²) + epsilon) · weight for each row. group: invocations that share a row."""

    def __init__(self, device: "Device", epsilon: float = 1e-6, group: int = 64):
        super().__init__(device)
        self.epsilon, self.group = epsilon, group
        self.kernel = device.kernel(shaders.spirv("rmsnorm"), {0: group})

    def calls(self, x: "Buffer", weight: "Buffer", y: "Buffer") -> tuple[Call, ...]:
        """x, y: fp32 (rows, columns); y may be x. weight: fp32 (columns,)."""
        push = _push(x, weight, y, self.epsilon)
        return (Call(self.kernel, spread(x.shape[0]), (x, weight, y), push),)


class RmsNormResidual(Family):
    """residual += x, then y = the norm of that, in one pass over memory instead of two."""

    def __init__(self, device: "Device", epsilon: float = 1e-6, group: int = 64):
        super().__init__(device)
        self.epsilon, self.group = epsilon, group
        self.kernel = device.kernel(shaders.spirv("rmsnorm_residual"), {0: group})

    def calls(self, x: "Buffer", residual: "Buffer", weight: "Buffer", y: "Buffer") -> tuple[Call, ...]:
        """x, residual, y: fp32 (rows, columns); y may be x, and residual is read and written."""
        push = _push(x, weight, y, self.epsilon)
        require_arrays("float32", residual=residual)
        require_shape("residual", residual, *x.shape)
        if residual is x or residual is y:
            raise ArgumentError("residual is one of the others", mend="use a buffer of its own: it is written")
        return (Call(self.kernel, spread(x.shape[0]), (x, residual, weight, y), push),)


def _push(x: "Buffer", weight: "Buffer", y: "Buffer", epsilon: float) -> bytes:
    require_arrays("float32", x=x, weight=weight, y=y)
    require_axes("x", x, 2)
    require_shape("weight", weight, x.shape[1])
    require_shape("y", y, *x.shape)
    return struct.pack("<2If", *x.shape, epsilon)
