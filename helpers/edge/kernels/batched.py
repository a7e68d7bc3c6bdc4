"""Products of a matrix with many vectors at once, so that it is read once for all of them: the prompt's kernels."""

import struct
from typing import TYPE_CHECKING

from helpers.edge import shaders
from helpers.edge.kernels.family import (
    MOST_GROUPS,
    ArgumentError,
    Call,
    Family,
    require_arrays,
    require_axes,
    require_shape,
    subgroup_size,
)
from helpers.edge.kernels.quantised import require_layout

if TYPE_CHECKING:
    from helpers.edge.vulkan import Buffer, Device, Kernel

CHUNK = 32  # tokens that a workgroup has, where lanes are tokens and its lanes are enough
MOST_HELD = 8  # lanes that pass values round: a loop of as many turns is unrolled


class DenseMatmul(Family):
    """Y (tokens, rows) = X (tokens, k) · Wᵀ for W (rows, k) in fp32, or in fp16 with k even.

    per_word: values in 32 bits, 1 or 2. rows, tokens: of one invocation; 0 tokens are as many as make a chunk of
    32, four at most. A workgroup is one subgroup whose lanes are tokens, so that W is read once for lanes · tokens
    of them. Raises `ArgumentError` where the device's subgroups cannot shuffle.
    """

    def __init__(self, device: "Device", per_word: int = 1, rows: int = 8, tokens: int = 0):
        super().__init__(device)
        _require_shuffle(device)
        self.per_word, lanes = per_word, subgroup_size(device)
        tokens = tokens or max(1, min(4, CHUNK // lanes))
        self.tile = (lanes * tokens, rows)
        constants = {0: lanes, 1: per_word, 2: min(lanes, MOST_HELD), 3: rows, 4: tokens}
        self.kernel = device.kernel(shaders.spirv("matmul_dense"), constants)

    def calls(self, words: "Buffer", x: "Buffer", y: "Buffer") -> tuple[Call, ...]:
        """words: uint32 (rows, k / per_word), the bits of W. x: fp32 (tokens, k). y: fp32 (tokens, rows)."""
        require_arrays("uint32", words=words)
        require_axes("words", words, 2)
        tokens, k = _require_vectors(x, y, words.shape[0])
        if words.shape[1] * self.per_word != k:
            raise ArgumentError(f"words of {words.shape}", mend=f"use ({words.shape[0]}, {k // self.per_word})")
        groups = (-(-words.shape[0] // self.tile[1]), -(-tokens // self.tile[0]))
        return _call(self.kernel, groups, (words, x, y), (tokens, words.shape[0], k))


class DequantMatmul(Family):
    """Y (tokens, rows) = X (tokens, k) · Wᵀ for `Quantised` matrices of one layout.

    bits, group: as in `Quantised`. rows, tokens: of one invocation, which dequantises a value once for all of its
    tokens. A workgroup is one subgroup whose lanes are rows. Raises `ArgumentError` where the device's subgroups
    cannot shuffle.
    """

    def __init__(self, device: "Device", bits: int = 4, group: int = 32, rows: int = 4, tokens: int = 16):
        super().__init__(device)
        require_layout(bits, group)
        _require_shuffle(device)
        self.bits, self.group, lanes = bits, group, subgroup_size(device)
        self.tile = (tokens, lanes * rows)
        hold = min(lanes, MOST_HELD, group & -group)
        constants = {0: lanes, 1: bits, 2: group, 3: hold, 4: rows, 5: tokens}
        self.kernel = device.kernel(shaders.spirv("matmul_dequant"), constants)

    def calls(self, words: "Buffer", scales: "Buffer", x: "Buffer", y: "Buffer") -> tuple[Call, ...]:
        """words, scales: uint32 as in `Quantised`. x: fp32 (tokens, k). y: fp32 (tokens, rows)."""
        require_arrays("uint32", words=words, scales=scales)
        require_axes("words", words, 2)
        rows = words.shape[1]
        tokens, k = _require_vectors(x, y, rows)
        count = -(-k // self.group)
        require_shape("words", words, count * self.group * self.bits // 32, rows)
        require_shape("scales", scales, count, rows)
        groups = (-(-rows // self.tile[1]), -(-tokens // self.tile[0]))
        return _call(self.kernel, groups, (words, scales, x, y), (tokens, rows, k))


def _require_vectors(x: "Buffer", y: "Buffer", rows: int) -> tuple[int, int]:
    """(tokens, k), where x and y fit each other and the matrix."""
    require_arrays("float32", x=x, y=y)
    require_axes("x", x, 2)
    require_shape("y", y, x.shape[0], rows)
    return x.shape


def _require_shuffle(device: "Device") -> None:
    if reason := device.info.why_not("subgroup_shuffle"):
        raise ArgumentError(reason, where=device.info.name, mend="multiply one vector after the other")


def _call(kernel: "Kernel", groups: tuple[int, int], buffers: tuple["Buffer", ...], sizes: tuple) -> tuple[Call, ...]:
    if max(groups) > MOST_GROUPS:
        raise ArgumentError(f"{groups} workgroups", mend=f"use {MOST_GROUPS} a direction at most")
    return (Call(kernel, groups, buffers, struct.pack("<3I", *sizes)),)
