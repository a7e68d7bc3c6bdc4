"""Matrices in 8-bit or 4-bit integers with a scale and a zero for each group, and their product with a vector."""

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from helpers.edge import shaders
from helpers.edge.kernels.family import ArgumentError, Call, Family, require_arrays, require_axes, require_shape

if TYPE_CHECKING:
    from helpers.edge.vulkan import Buffer, Device

BITS = (4, 8)


@dataclass(frozen=True)
class Quantised:
    """A matrix (rows, k) as the shader reads it; what a value stands for is scale · (q - zero).

    words: uint32 (words along k, rows), the first value in the lowest bits. scales: uint32 (groups
    along k, rows), the scale and the zero as two fp16 numbers, the scale in the lower half. Rows
    come last, so that lanes with a row each read neighbours. bits: of a value, unsigned. group:
    values along k that share a scale. k: values of a row; what is behind them in the last words is 0.
    """

    words: np.ndarray
    scales: np.ndarray
    bits: int
    group: int
    k: int

    @property
    def rows(self) -> int:
        """Rows of the matrix."""
        return self.words.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes that a product with it reads of the matrix."""
        return self.words.nbytes + self.scales.nbytes

    def values(self) -> np.ndarray:
        """What the integers stand for: float64 (rows, k), exactly."""
        per_word = 32 // self.bits
        shifts = np.arange(per_word, dtype=np.uint32) * np.uint32(self.bits)
        q = (self.words.T[:, :, None] >> shifts & np.uint32(2**self.bits - 1)).reshape(self.rows, -1)[:, : self.k]
        halves = self.scales.T.copy().view(np.float16).reshape(self.rows, -1, 2).astype(np.float64)
        scale, zero = (np.repeat(halves[:, :, part], self.group, axis=1)[:, : self.k] for part in (0, 1))
        return scale * (q - zero)


def quantise(matrix: np.ndarray, bits: int = 4, group: int = 32) -> Quantised:
    """Round a float matrix (rows, k) to `bits`-bit integers with a scale and a zero for each `group` along k.

    With 4 bits the range of a group, widened to hold 0, is divided evenly and the zero is the integer
    that stands for 0. With 8 bits the zero is 128 and the range is symmetric. Raises `ArgumentError`
    for other bits, groups that are not whole words, or values that fp16 scales cannot hold.
    """
    require_layout(bits, group)
    matrix = np.asarray(matrix, dtype=np.float64)
    if matrix.ndim != 2 or not matrix.size or not np.isfinite(matrix).all():
        raise ArgumentError(f"a matrix of shape {matrix.shape}", mend="use (rows, k) finite values")
    rows, k = matrix.shape
    padded = np.zeros((rows, -(-k // group) * group))
    padded[:, :k] = matrix
    grouped = padded.reshape(rows, -1, group)
    scale, zero = _scales(grouped, bits)
    q = np.rint(grouped / np.where(scale > 0, scale, 1)[..., None] + zero[..., None]).clip(0, 2**bits - 1)
    halves = np.stack([scale, zero], axis=-1).astype(np.float16).view(np.uint32)[..., 0]
    q = q.astype(np.uint32).reshape(rows, -1)
    q[:, k:] = 0
    return Quantised(_pack(q, bits), np.ascontiguousarray(halves.T), bits, group, k)


class DequantMatvec(Family):
    """y (rows,) = W (rows, k) · x (k,) for `Quantised` matrices of one layout.

    bits, group: as in `Quantised`. lanes: rows that lie side by side in a workgroup; each invocation
    has `rows` of them. parts: invocations that share a row's groups. The defaults suit drivers on CPUs;
    a GPU wants more invocations: fewer rows and more parts.
    """

    def __init__(
        self, device: "Device", bits: int = 4, group: int = 32, lanes: int = 16, parts: int = 2, rows: int = 8
    ):
        super().__init__(device)
        require_layout(bits, group)
        self.bits, self.group, self.lanes, self.rows = bits, group, lanes, rows
        constants = {0: lanes, 1: parts, 2: bits, 3: group, 4: rows}
        self.kernel = device.kernel(shaders.spirv("dequant_matvec"), constants)

    def calls(self, words: "Buffer", scales: "Buffer", x: "Buffer", y: "Buffer") -> tuple[Call, ...]:
        """words, scales: uint32 as in `Quantised`. x: fp32 (k,). y: fp32 (rows,)."""
        require_arrays("uint32", words=words, scales=scales)
        require_arrays("float32", x=x, y=y)
        for name, array, axes in (("words", words, 2), ("scales", scales, 2), ("x", x, 1)):
            require_axes(name, array, axes)
        rows, k = words.shape[1], x.shape[0]
        groups = -(-k // self.group)
        require_shape("words", words, groups * self.group * self.bits // 32, rows)
        require_shape("scales", scales, groups, rows)
        require_shape("y", y, rows)
        count = -(-rows // (self.lanes * self.rows))
        return (Call(self.kernel, (count,), (words, scales, x, y), struct.pack("<2I", rows, k)),)


def _scales(grouped: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """(scale, zero) of each group, rounded to the fp16 values that are stored."""
    if bits == 8:
        scale, zero = np.abs(grouped).max(axis=2) / 127, np.full(grouped.shape[:2], 128.0)
    else:
        low, high = np.minimum(grouped.min(axis=2), 0), np.maximum(grouped.max(axis=2), 0)
        scale = (high - low) / (2**bits - 1)
        zero = np.rint(-low / np.where(scale > 0, scale, 1)).clip(0, 2**bits - 1)
    with np.errstate(over="ignore"):
        stored = scale.astype(np.float16).astype(np.float64)
    if not np.isfinite(stored).all():
        raise ArgumentError(f"a group needs the scale {scale.max():g}", mend="scale the matrix: fp16 ends at 65504")
    return stored, zero


def _pack(q: np.ndarray, bits: int) -> np.ndarray:
    """Integers (rows, k) as words (words along k, rows)."""
    parts = q.reshape(len(q), -1, 32 // bits)
    words = np.zeros(parts.shape[:2], dtype=np.uint32)
    for place in range(parts.shape[2]):
        words |= parts[:, :, place] << np.uint32(bits * place)
    return np.ascontiguousarray(words.T)


def require_layout(bits: int, group: int) -> None:
    """Raise `ArgumentError` for integers or groups that no kernel here reads."""
    if bits not in BITS:
        raise ArgumentError(f"{bits}-bit integers", mend="use 4 or 8")
    if group < 1 or group % (32 // bits):
        raise ArgumentError(f"groups of {group}", mend=f"use a multiple of {32 // bits}: a word has one scale")
