"""A logical device: the queue, the memory types, and the objects that live on it."""

import ctypes
import weakref
from ctypes import byref, c_float, c_uint32, c_uint64, c_void_p

import numpy as np

from helpers.edge.vulkan import binding as vk
from helpers.edge.vulkan.buffer import Buffer
from helpers.edge.vulkan.info import DeviceInfo
from helpers.edge.vulkan.instance import Instance, Message
from helpers.edge.vulkan.kernel import Kernel
from helpers.edge.vulkan.loader import NoVulkan, VulkanError, array, make


class Device:
    """A Vulkan device with one compute queue, ready for buffers and kernels.

    `robustBufferAccess` is on: an index too far reads zero or is dropped, and cannot kill the
    process. `copies` counts the bytes that were copied to or from buffers on the host, which a
    mapped array never does. Close the device, or use it in a `with` block.
    """

    def __init__(self, instance: Instance, index: int = 0):
        self.instance, self.functions = instance, instance.functions
        self.info: DeviceInfo = instance.infos()[index]
        self._physical = instance.physical_devices()[index]
        self.family, self.timestamp_bits = self._compute_family()
        self.handle = self._create()
        self.queue = c_void_p()
        self.functions.vkGetDeviceQueue(self.handle, self.family, 0, byref(self.queue))
        self.commands = self._command_pool()
        self.memory_types = self._memory_types()
        self.copied_bytes = 0
        self.children: weakref.WeakSet = weakref.WeakSet()
        instance.children.add(self)

    def __enter__(self) -> "Device":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def buffer(self, shape: int | tuple[int, ...], dtype=np.float32) -> Buffer:
        """A zeroed buffer for `shape` elements of a NumPy `dtype`, mapped into this process."""
        return Buffer(self, shape, np.dtype(dtype))

    def upload(self, values: np.ndarray) -> Buffer:
        """A buffer with a copy of `values`; the bytes are added to `copied_bytes`."""
        values = np.ascontiguousarray(values)
        buffer = self.buffer(values.shape, values.dtype)
        buffer.array()[...] = values
        self.copied_bytes += values.nbytes
        return buffer

    def kernel(self, spirv: bytes, constants: dict[int, int] | None = None) -> Kernel:
        """A compute pipeline from SPIR-V; `constants` set specialization constants by their id."""
        return Kernel(self, spirv, constants or {})

    def take_messages(self) -> tuple[Message, ...]:
        """What the validation layer said since the last call."""
        return self.instance.take_messages()

    def close(self) -> None:
        """Wait for the device, then destroy everything on it; harmless when closed."""
        if self.handle is None:
            return
        self.functions.vkDeviceWaitIdle(self.handle)
        for child in list(self.children):
            child.destroy()
        self.functions.vkDestroyCommandPool(self.handle, self.commands, None)
        self.functions.vkDestroyDevice(self.handle, None)
        self.handle = None
        self.instance.children.discard(self)

    def memory_type(self, allowed: int, wanted: int) -> int:
        """The first memory type in the bit mask `allowed` with all property bits of `wanted`."""
        for index, flags in enumerate(self.memory_types):
            if allowed >> index & 1 and flags & wanted == wanted:
                return index
        raise VulkanError(
            f"no memory type has the properties {wanted:#x}", where=self.info.name, mend="choose another device"
        )

    def _compute_family(self) -> tuple[int, int]:
        count = c_uint32()
        self.functions.vkGetPhysicalDeviceQueueFamilyProperties(self._physical, byref(count), None)
        families = array(vk.VkQueueFamilyProperties, count.value)
        self.functions.vkGetPhysicalDeviceQueueFamilyProperties(self._physical, byref(count), families)
        for index, family in enumerate(families):
            if family.queueFlags & vk.VK_QUEUE_COMPUTE_BIT:
                return index, family.timestampValidBits
        raise NoVulkan("the device has no compute queue", where=self.info.name, mend="choose another device")

    def _create(self):
        priority = array(c_float, [1.0])
        queue = make(
            vk.VkDeviceQueueCreateInfo, queueFamilyIndex=self.family, queueCount=1, pQueuePriorities=priority
        )
        features = vk.VkPhysicalDeviceFeatures(robustBufferAccess=1)
        create = make(
            vk.VkDeviceCreateInfo,
            queueCreateInfoCount=1,
            pQueueCreateInfos=ctypes.pointer(queue),
            pEnabledFeatures=ctypes.pointer(features),
        )
        handle = c_void_p()
        self.functions.vkCreateDevice(self._physical, byref(create), None, byref(handle))
        return handle

    def _command_pool(self) -> int:
        pool = c_uint64()
        create = make(vk.VkCommandPoolCreateInfo, queueFamilyIndex=self.family)
        self.functions.vkCreateCommandPool(self.handle, byref(create), None, byref(pool))
        return pool.value

    def _memory_types(self) -> list[int]:
        memory = vk.VkPhysicalDeviceMemoryProperties()
        self.functions.vkGetPhysicalDeviceMemoryProperties(self._physical, byref(memory))
        return [kind.propertyFlags for kind in memory.memoryTypes[: memory.memoryTypeCount]]


def open_device(name: str = "", kind: str = "", validation: bool = True) -> Device:
    """Open the first device whose name contains `name` and whose kind is `kind`, GPUs first.

    Raises `NoVulkan` when there is none, naming those that are there.
    """
    instance = Instance(validation)
    infos = instance.infos()
    fitting = [info for info in infos if name.lower() in info.name.lower() and kind in ("", info.kind)]
    if not fitting:
        instance.close()
        there = ", ".join(f"{info.name} ({info.kind})" for info in infos) or "none"
        wanted = " ".join(filter(None, [kind, repr(name) if name else ""])) or "of any kind"
        raise NoVulkan(f"no Vulkan device {wanted}; there: {there}", mend="helpers doctor lists the devices")
    best = min(fitting, key=lambda info: (info.kind == "cpu", info.index))
    return Device(instance, best.index)
