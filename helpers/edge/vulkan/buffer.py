"""Storage buffers: mapped into this process, private to the device, or memory that was here already."""

import ctypes
import math
import mmap
from ctypes import byref, c_uint64, c_void_p
from typing import TYPE_CHECKING

import numpy as np

from helpers.edge.vulkan import binding as vk
from helpers.edge.vulkan.features import BUFFER_USAGE, HOST_POINTER
from helpers.edge.vulkan.info import Memory
from helpers.edge.vulkan.loader import VulkanError, make

if TYPE_CHECKING:
    import torch

    from helpers.edge.vulkan.device import Device

DTYPES = "float16 float32 float64 int8 uint8 int16 uint16 int32 uint32 int64 uint64"


class BufferError(VulkanError):
    """A buffer that is too large, was freed, or is still looked at while it should be freed."""


class Allocation:
    """A `VkBuffer` and the memory bound to it; freed when neither a `Buffer` nor a view needs it.

    nbytes: what the shader sees. pointer: where it is mapped, or 0. memory: the properties of the
    memory type that was allocated. kept: what must live as long, such as an imported array.
    """

    def __init__(self, device: "Device", nbytes: int, wanted: Memory, imported: int = 0, kept=None):
        self.device, self.nbytes, self.kept = device, nbytes, kept
        self.handle: int | None = None
        self._memory = c_uint64()
        self.views = 0  # arrays and tensors that look at the memory
        self._view_kind = type("MappedMemory", (ctypes.c_uint8 * nbytes,), {"__del__": _view_gone})
        handle = self._create(imported)
        try:
            self.memory = self._allocate(handle, wanted, imported)
            device.functions.vkBindBufferMemory(device.handle, handle, self._memory, 0)
        except VulkanError:
            device.functions.vkDestroyBuffer(device.handle, handle, None)
            if self._memory:
                device.functions.vkFreeMemory(device.handle, self._memory, None)
            raise
        self.handle = handle.value
        self.pointer = imported or (self._map() if Memory.HOST_VISIBLE in wanted else 0)
        start = self.pointer or -self.handle << 64
        self.span = start, start + nbytes  # two allocations whose spans overlap are the same memory
        device.children.add(self)

    def view(self) -> ctypes.Array:
        """The mapped bytes; they keep this allocation alive."""
        if self.kept is not None:
            return self.kept
        view = self._view_kind.from_address(self.pointer)
        view.allocation = self
        self.views += 1
        return view

    def destroy(self) -> None:
        """Give the memory back; harmless when it was."""
        if self.handle is None:
            return
        functions, device = self.device.functions, self.device
        if device.usable:
            device.descriptors.forget(("buffer", self.handle))
            if self.pointer and self.kept is None:
                functions.vkUnmapMemory(device.handle, self._memory)
            functions.vkDestroyBuffer(device.handle, self.handle, None)
            functions.vkFreeMemory(device.handle, self._memory, None)
        self.handle = self.kept = None
        device.children.discard(self)
        device.finish()

    __del__ = destroy

    def _create(self, imported: int) -> c_uint64:
        handle = c_uint64()
        external = make(vk.VkExternalMemoryBufferCreateInfo, handleTypes=HOST_POINTER) if imported else None
        size = -(-self.nbytes // 4) * 4  # a fill writes whole words
        create = make(vk.VkBufferCreateInfo, chain=external, size=size, usage=BUFFER_USAGE)
        self.device.functions.vkCreateBuffer(self.device.handle, byref(create), None, byref(handle))
        return handle

    def _allocate(self, handle: c_uint64, wanted: Memory, imported: int) -> Memory:
        functions, device = self.device.functions, self.device
        needs = vk.VkMemoryRequirements()
        functions.vkGetBufferMemoryRequirements(device.handle, handle, byref(needs))
        allowed, size, chain = needs.memoryTypeBits, needs.size, None
        if imported:
            step = device.info.limits.import_alignment
            allowed &= self._importable(imported)
            size = -(-self.nbytes // step) * step
            chain = make(vk.VkImportMemoryHostPointerInfoEXT, handleType=HOST_POINTER, pHostPointer=imported)
        index = device.memory_type(allowed, wanted)
        allocate = make(vk.VkMemoryAllocateInfo, chain=chain, allocationSize=size, memoryTypeIndex=index)
        functions.vkAllocateMemory(device.handle, byref(allocate), None, byref(self._memory))
        return device.info.memory_types[index]

    def _importable(self, pointer: int) -> int:
        answer = make(vk.VkMemoryHostPointerPropertiesEXT)
        self.device.functions.vkGetMemoryHostPointerPropertiesEXT(
            self.device.handle, HOST_POINTER, pointer, byref(answer)
        )
        return answer.memoryTypeBits

    def _map(self) -> int:
        pointer = c_void_p()
        self.device.functions.vkMapMemory(self.device.handle, self._memory, 0, 2**64 - 1, 0, byref(pointer))
        return pointer.value


def _view_gone(view: ctypes.Array) -> None:
    """Count a view out; a closed device waits for the last one of its memory."""
    allocation = view.allocation
    allocation.views -= 1
    if allocation.device.closed and not allocation.views:
        allocation.destroy()


class Buffer:
    """`shape` elements of `dtype` on a device.

    memory: the properties of the memory type that was really allocated, which may be more than was
    asked for. pointer: where the memory lies in this process, or 0 where it is not mapped. A mapped
    buffer is one for its whole life: `array()` and `tensor()` are views of it, not copies, and it
    cannot be freed while a view lives. Dropped without `free()`, its memory goes with the last view.
    """

    def __init__(self, device: "Device", shape: tuple[int, ...], dtype: np.dtype, allocation: Allocation):
        self.device, self.shape, self.dtype = device, shape, dtype
        self.nbytes = allocation.nbytes
        self.memory, self.pointer = allocation.memory, allocation.pointer
        self.imported, self.writable = allocation.kept is not None, True
        self.dtype_name = dtype.name
        self.allocation = allocation

    @property
    def handle(self) -> int | None:
        """The `VkBuffer`, or None when it was freed."""
        return self.allocation.handle

    def array(self) -> np.ndarray:
        """A NumPy array of the buffer's shape and dtype whose memory is the buffer's."""
        self._require_here()
        if not self.pointer:
            raise BufferError(
                f"a buffer in {self.memory} is not mapped into this process",
                mend="use read() and write(), which go through a staging buffer, or ask for Memory.SHARED",
            )
        view = self.allocation.view()
        return view if self.imported else np.frombuffer(view, self.dtype).reshape(self.shape)

    def tensor(self) -> "torch.Tensor":
        """A torch tensor of the buffer's shape whose memory is the buffer's."""
        import torch

        return torch.from_numpy(self.array())

    def read(self) -> np.ndarray:
        """A copy of the content, through a staging buffer where the memory is not mapped; counted."""
        self._require_here()
        if self.pointer:
            copy = np.array(self.array())
            self.device.count_copy(self.nbytes)
            return copy
        staging = new_buffer(self.device, self.shape, self.dtype, Memory.SHARED, zeroed=False)
        self.device.copy(self, staging)
        return staging.read()

    def write(self, values) -> None:
        """Copy `values` of the buffer's shape and dtype into it, likewise; counted.

        Raises `BufferError` for another shape or dtype.
        """
        self._require_here()
        values = host_array(values)
        if values.shape != self.shape or values.dtype != self.dtype:
            raise BufferError(
                f"{values.dtype} values of shape {values.shape} for a {self.dtype} buffer of shape {self.shape}",
                mend="give the same shape and dtype: nothing is broadcast or converted",
            )
        if self.pointer:
            self.array()[...] = values
            self.device.count_copy(self.nbytes)
            return
        staging = new_buffer(self.device, self.shape, self.dtype, Memory.SHARED, zeroed=False)
        staging.write(values)
        self.device.copy(staging, self)

    def free(self) -> None:
        """Give the memory back; harmless when freed. `BufferError` while a view lives."""
        alive = self.allocation.views
        if alive and self.handle is not None:
            raise BufferError(
                f"{alive} arrays or tensors still look at this buffer of {self.nbytes} bytes",
                mend="delete them first, or copy what you need with .copy() or .clone()",
            )
        self.allocation.destroy()

    def _require_here(self) -> None:
        if self.handle is None:
            raise BufferError("the buffer was freed", mend="make a new one")


def new_buffer(device: "Device", shape: int | tuple[int, ...], dtype, memory: Memory, zeroed: bool = True) -> Buffer:
    """A new buffer. Raises `BufferError` for a dtype, size or memory that cannot be."""
    dtype, shape = _require_dtype(dtype), (shape,) if isinstance(shape, int) else tuple(shape)
    nbytes = _require_size(device, shape, dtype)
    if Memory.HOST_VISIBLE in memory:
        memory |= Memory.HOST_COHERENT
    buffer = Buffer(device, shape, dtype, Allocation(device, nbytes, memory))
    if zeroed and buffer.pointer:
        ctypes.memset(buffer.pointer, 0, nbytes)
    elif zeroed:
        device.fill(buffer)
    return buffer


def import_buffer(device: "Device", array: np.ndarray) -> Buffer:
    """A buffer that is the memory of `array`. Raises `BufferError` with the mend where it cannot be."""
    if reason := device.info.why_not("host_import"):
        raise BufferError(f"{device.info.name} imports no memory: {reason}", mend="upload() a copy instead")
    array = host_array(array)
    dtype, step = _require_dtype(array.dtype), device.info.limits.import_alignment
    nbytes = _require_size(device, array.shape, dtype)
    if not array.flags.c_contiguous:
        raise BufferError(
            f"an array of shape {array.shape} with strides {array.strides} bytes is not contiguous",
            mend="import what it is a view of, or np.ascontiguousarray(), which copies",
        )
    beside = array.ctypes.data % step
    if beside or (nbytes % step and step > mmap.PAGESIZE):
        raise BufferError(
            f"the memory starts {beside} bytes behind a multiple of {step}"
            if beside
            else f"{nbytes} bytes are no multiple of {step}",
            where=f"minImportedHostPointerAlignment of {device.info.name}",
            mend="make the array with page_aligned(shape, dtype)",
        )
    allocation = Allocation(device, nbytes, Memory(0), array.ctypes.data, array)
    buffer = Buffer(device, array.shape, dtype, allocation)
    buffer.writable = bool(array.flags.writeable)
    return buffer


def page_aligned(shape: int | tuple[int, ...], dtype=np.float32, alignment: int = mmap.PAGESIZE) -> np.ndarray:
    """A zeroed array whose memory starts at a multiple of `alignment` bytes and owns its last page whole.

    `np.empty` and torch align to 64 bytes at most, which is not enough to import.
    """
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    pages = mmap.mmap(-1, max(1, -(-nbytes // alignment)) * alignment + alignment - mmap.PAGESIZE)
    whole = np.frombuffer(pages, np.uint8)
    start = -whole.ctypes.data % alignment
    return whole[start : start + nbytes].view(dtype).reshape(shape)


def host_array(values) -> np.ndarray:
    """`values` as a NumPy array without a copy: an array, or a tensor on the CPU."""
    device = getattr(values, "device", None)
    if hasattr(values, "detach"):
        if device.type != "cpu":
            raise BufferError(f"a tensor on {device}", mend="bring it to the host with .cpu(), which copies")
        try:
            return values.detach().numpy()
        except TypeError:
            raise BufferError(
                f"NumPy has no {values.dtype}",
                mend="view its bits with .view(torch.uint16), or convert it with .float()",
            ) from None
    return np.asarray(values)


def _require_dtype(dtype) -> np.dtype:
    dtype = np.dtype(dtype)
    if dtype.name not in DTYPES.split() or not dtype.isnative:
        raise BufferError(f"a buffer of {dtype} elements", mend=f"use one of {DTYPES.replace(' ', ', ')}")
    return dtype


def _require_size(device: "Device", shape: tuple[int, ...], dtype: np.dtype) -> int:
    nbytes = math.prod(shape) * dtype.itemsize
    limit = device.info.limits.storage_buffer_bytes
    if not 0 < nbytes <= limit:
        raise BufferError(
            f"a buffer of {shape} {dtype} has {nbytes} bytes",
            where=device.info.name,
            mend=f"use 1 to {limit} bytes: split larger arrays",
        )
    return nbytes
