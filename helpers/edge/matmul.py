"""Matrix multiplication on a Vulkan device, and how far from the truth it may be."""

import struct
from typing import TYPE_CHECKING

import numpy as np

from helpers.edge import bounds, shaders
from helpers.errors import CourseError

if TYPE_CHECKING:
    from helpers.edge.vulkan import Buffer, Device, Dispatch, Kernel


class MatmulError(CourseError):
    """Matrices that cannot be multiplied by the shader."""


class TiledMatmul:
    """The tiled shader on a device. tile: rows and columns of a workgroup's tile of the result."""

    def __init__(self, device: "Device", tile: int = 16):
        self.device, self.tile = device, tile
        self.kernel: Kernel = device.kernel(shaders.spirv("matmul_tiled"), {0: tile})

    def groups(self, m: int, n: int) -> tuple[int, int]:
        """Workgroups (x, y) that cover a result of (m, n)."""
        return -(-n // self.tile), -(-m // self.tile)

    def run(self, a: "Buffer", b: "Buffer", c: "Buffer") -> "Dispatch":
        """C (m, n) = A (m, k) · B (k, n), all fp32 buffers of this device.

        Raises `MatmulError` for other dtypes, or shapes that do not fit each other.
        """
        require_fit(a, b, c)
        (m, k), n = a.shape, b.shape[1]
        return self.kernel.run(self.groups(m, n), [a, b, c], struct.pack("<3I", m, n, k))


def multiply(device: "Device | None", a: np.ndarray, b: np.ndarray, tile: int = 16):
    """(A·B, its `Dispatch`) on a device, or (A·B, None) from the NumPy model without one.

    a: (m, k) fp32. b: (k, n) fp32. The result is a copy.
    """
    if device is None:
        return model_matmul(a, b, tile), None
    product = device.buffer((a.shape[0], b.shape[1]))
    done = TiledMatmul(device, tile).run(device.upload(a), device.upload(b), product)
    return product.array().copy(), done


def require_fit(*arrays) -> None:
    """Raise `MatmulError` unless the three are fp32 with shapes (m, k), (k, n) and (m, n)."""
    shapes = [tuple(array.shape) for array in arrays]
    if any(np.dtype(array.dtype) != np.float32 for array in arrays):
        kinds = ", ".join(str(array.dtype) for array in arrays)
        raise MatmulError(f"dtypes {kinds}", mend="use float32 for all three")
    a, b, c = shapes
    if not (len(a) == len(b) == len(c) == 2 and a[1] == b[0] and c == (a[0], b[1])):
        raise MatmulError(f"shapes {a} · {b} → {c}", mend="use (m, k) · (k, n) → (m, n)")


def error_ratio(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> float:
    """`bounds.error_ratio` of a product: the largest error of fp32 C = A·B in units of `bounds.dot_bound`."""
    return bounds.error_ratio(c, np.asarray(a, dtype=float) @ np.asarray(b, dtype=float), bounds.dot_bound(a, b))


def model_matmul(a: np.ndarray, b: np.ndarray, tile: int = 16) -> np.ndarray:
    """What the tiled shader computes, workgroup by workgroup, in NumPy: for machines without Vulkan.

    a: (m, k) fp32. b: (k, n) fp32. The sums run tile by tile over K in fp32, as the shader's do.
    """
    (m, k), n = a.shape, b.shape[1]
    c = np.zeros((m, n), dtype=np.float32)
    for row in range(0, m, tile):
        for column in range(0, n, tile):
            for start in range(0, k, tile):
                part = a[row : row + tile, start : start + tile] @ b[start : start + tile, column : column + tile]
                c[row : row + tile, column : column + tile] += part
    return c
