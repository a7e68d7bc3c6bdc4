"""Vulkan compute from Python: devices, mapped buffers, kernels, dispatches with timestamps."""

from helpers.edge.vulkan.buffer import Buffer, BufferError
from helpers.edge.vulkan.device import Device, open_device
from helpers.edge.vulkan.info import DeviceInfo, MatrixShape
from helpers.edge.vulkan.instance import Message, devices, why_none
from helpers.edge.vulkan.kernel import Dispatch, Kernel, KernelError
from helpers.edge.vulkan.loader import NoVulkan, VulkanError

__all__ = [
    "Buffer",
    "BufferError",
    "Device",
    "DeviceInfo",
    "Dispatch",
    "Kernel",
    "KernelError",
    "MatrixShape",
    "Message",
    "NoVulkan",
    "VulkanError",
    "devices",
    "open_device",
    "why_none",
]
