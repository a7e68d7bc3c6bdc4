"""Storage buffers in memory that the host and the device both see."""

import ctypes
import math
import weakref
from ctypes import byref, c_uint64, c_void_p
from typing import TYPE_CHECKING

import numpy as np

from helpers.edge.vulkan import binding as vk
from helpers.edge.vulkan.loader import VulkanError, make

if TYPE_CHECKING:
    import torch

    from helpers.edge.vulkan.device import Device

SHARED = vk.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | vk.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT


class BufferError(VulkanError):
    """A buffer that is too large, was freed, or is still looked at while it should be freed."""


class Buffer:
    """`shape` elements of `dtype` on a device, mapped into this process for its whole life.

    `array()` and `tensor()` are views of the mapped memory, not copies. A buffer cannot be freed
    while a view of it lives: that view would point at memory that is no longer there.
    """

    def __init__(self, device: "Device", shape: int | tuple[int, ...], dtype: np.dtype):
        self.device, self.dtype = device, dtype
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.nbytes = math.prod(self.shape) * dtype.itemsize
        limit = device.info.limits.storage_buffer_bytes
        if not 0 < self.nbytes <= limit:
            raise BufferError(
                f"a buffer of {self.shape} {dtype} has {self.nbytes} bytes",
                where=device.info.name,
                mend=f"use 1 to {limit} bytes: split larger arrays",
            )
        self.handle, self._memory = self._create()
        self.pointer = self._map()
        self._views: list[weakref.ref] = []
        self.array()[...] = 0
        device.children.add(self)

    def array(self) -> np.ndarray:
        """A NumPy array of the buffer's shape and dtype whose memory is the buffer's."""
        if self.handle is None:
            raise BufferError("the buffer was freed", mend="make a new one")
        # A class of its own, because plain ctypes arrays cannot be referred to weakly.
        view = type("MappedMemory", (ctypes.c_uint8 * self.nbytes,), {}).from_address(self.pointer)
        self._views.append(weakref.ref(view))
        return np.frombuffer(view, self.dtype).reshape(self.shape)

    def tensor(self) -> "torch.Tensor":
        """A torch tensor of the buffer's shape whose memory is the buffer's."""
        import torch

        return torch.from_numpy(self.array())

    def free(self) -> None:
        """Give the memory back; harmless when freed. `BufferError` while a view lives."""
        alive = sum(view() is not None for view in self._views)
        if alive and self.handle is not None:
            raise BufferError(
                f"{alive} arrays or tensors still look at this buffer of {self.nbytes} bytes",
                mend="delete them first, or copy what you need with .copy() or .clone()",
            )
        self.destroy()

    def destroy(self) -> None:
        """Give the memory back whoever looks at it: for the end of the device."""
        if self.handle is None:
            return
        functions, device = self.device.functions, self.device.handle
        functions.vkUnmapMemory(device, self._memory)
        functions.vkDestroyBuffer(device, self.handle, None)
        functions.vkFreeMemory(device, self._memory, None)
        self.handle = None
        self.device.children.discard(self)

    def _create(self) -> tuple[int, int]:
        functions, device = self.device.functions, self.device.handle
        buffer, memory = c_uint64(), c_uint64()
        create = make(vk.VkBufferCreateInfo, size=self.nbytes, usage=vk.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT)
        functions.vkCreateBuffer(device, byref(create), None, byref(buffer))
        needs = vk.VkMemoryRequirements()
        functions.vkGetBufferMemoryRequirements(device, buffer, byref(needs))
        allocate = make(
            vk.VkMemoryAllocateInfo,
            allocationSize=needs.size,
            memoryTypeIndex=self.device.memory_type(needs.memoryTypeBits, SHARED),
        )
        try:
            functions.vkAllocateMemory(device, byref(allocate), None, byref(memory))
        except VulkanError:
            functions.vkDestroyBuffer(device, buffer, None)
            raise
        functions.vkBindBufferMemory(device, buffer, memory, 0)
        return buffer.value, memory.value

    def _map(self) -> int:
        pointer = c_void_p()
        self.device.functions.vkMapMemory(self.device.handle, self._memory, 0, 2**64 - 1, 0, byref(pointer))
        return pointer.value
