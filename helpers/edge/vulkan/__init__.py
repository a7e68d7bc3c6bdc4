"""Vulkan compute from Python: devices, buffers, kernels, recordings of dispatches with timestamps."""

from helpers.edge.vulkan.buffer import Buffer, BufferError, page_aligned
from helpers.edge.vulkan.device import Copies, Device, open_device
from helpers.edge.vulkan.drivers import Driver, driver, drivers
from helpers.edge.vulkan.info import DeviceInfo, Heap, MatrixShape, Memory
from helpers.edge.vulkan.instance import Message, devices, why_none
from helpers.edge.vulkan.kernel import Kernel, KernelError
from helpers.edge.vulkan.layers import Check
from helpers.edge.vulkan.loader import DeviceLost, NoVulkan, OutOfMemory, VulkanError
from helpers.edge.vulkan.recording import Barrier, Dispatch, Recording, RecordingError, Run
from helpers.edge.vulkan.subgroups import SubgroupProbe, SubgroupWarning

__all__ = [
    "Barrier",
    "Buffer",
    "BufferError",
    "Check",
    "Copies",
    "Device",
    "DeviceInfo",
    "DeviceLost",
    "Dispatch",
    "Driver",
    "Heap",
    "Kernel",
    "KernelError",
    "MatrixShape",
    "Memory",
    "Message",
    "NoVulkan",
    "OutOfMemory",
    "Recording",
    "RecordingError",
    "Run",
    "SubgroupProbe",
    "SubgroupWarning",
    "VulkanError",
    "devices",
    "driver",
    "drivers",
    "open_device",
    "page_aligned",
    "why_none",
]
