"""Attention of new tokens over the keys and values of those up to each."""

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
    subgroup_size,
)

if TYPE_CHECKING:
    from helpers.edge.vulkan import Buffer, Device

MOST_SUBGROUPS = 8
SHARED_BYTES = 16384  # shared memory that every Vulkan device has


class AttentionDecode(Family):
    """softmax(scale · q·Kᵀ)·V for one query of each head and token, with neighbouring query heads on one key head.

    heads, key_heads: how many of each; the first is a multiple of the second. size: elements of a
    head. scale: 1 / √size by default.
    """

    def __init__(self, device: "Device", heads: int, key_heads: int, size: int, scale: float | None = None):
        super().__init__(device)
        if min(heads, key_heads, size) < 1 or heads % key_heads:
            raise ArgumentError(
                f"{heads} query heads of {size} on {key_heads} key heads", mend="use a whole number of heads for each"
            )
        self.heads, self.key_heads, self.size = heads, key_heads, size
        self.scale = size**-0.5 if scale is None else scale
        lanes, together = subgroup_size(device), heads // key_heads
        self.subgroups = min(MOST_SUBGROUPS, SHARED_BYTES // (4 * together * (size + 2)))
        if not self.subgroups:
            raise ArgumentError(
                f"{together} heads of {size} elements need more than {SHARED_BYTES} bytes of shared memory",
                mend="use fewer query heads for a key head",
            )
        constants = {0: lanes * self.subgroups, 1: together, 2: size, 3: -(-size // lanes), 4: self.subgroups}
        self.kernel = device.kernel(shaders.spirv("attention_decode"), constants)

    def steps(self, keys: int) -> int:
        """The most keys that one subgroup reads, should subgroups be large and few: for `bounds.attention_bound`."""
        fewest = max(1, self.kernel.interface.local_size[0] // self.device.info.subgroup_sizes[1])
        return -(-keys // fewest)

    def calls(self, q: "Buffer", keys: "Buffer", values: "Buffer", length: "Buffer", y: "Buffer") -> tuple[Call, ...]:
        """q, y: fp32 (heads, size), or (tokens, heads, size). keys, values: fp32 (capacity, key heads, size).

        length: uint32 (1,), how many keys there are, at least as many as tokens; the last ones are those of the
        tokens, and each token sees the keys up to its own. It is read when the kernel runs, so that one recording
        serves all of as many tokens; what exceeds the capacity is cut off.
        """
        require_arrays("float32", q=q, keys=keys, values=values, y=y)
        require_arrays("uint32", length=length)
        require_shape("length", length, 1)
        tokens = q.shape[0] if len(q.shape) == 3 else 1
        require_shape("q", q, *q.shape[:-2], self.heads, self.size)
        require_axes("keys", keys, 3)
        require_shape("keys", keys, keys.shape[0], self.key_heads, self.size)
        require_shape("values", values, *keys.shape)
        require_shape("y", y, *q.shape)
        push = struct.pack("<If", keys.shape[0], self.scale)
        return (Call(self.kernel, (self.key_heads, tokens), (q, keys, values, length, y), push),)
