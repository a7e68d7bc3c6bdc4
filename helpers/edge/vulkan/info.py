"""What a Vulkan device says of itself."""

import ctypes
from dataclasses import dataclass
from enum import StrEnum

from helpers.edge.vulkan import binding as vk
from helpers.edge.vulkan.loader import Functions, array, make

COOPERATIVE_MATRIX = "VK_KHR_cooperative_matrix"
COMPONENTS = {
    vk.VK_COMPONENT_TYPE_FLOAT16_KHR: "f16",
    vk.VK_COMPONENT_TYPE_FLOAT32_KHR: "f32",
    vk.VK_COMPONENT_TYPE_FLOAT64_KHR: "f64",
    vk.VK_COMPONENT_TYPE_BFLOAT16_KHR: "bf16",
    vk.VK_COMPONENT_TYPE_SINT8_KHR: "s8",
    vk.VK_COMPONENT_TYPE_SINT16_KHR: "s16",
    vk.VK_COMPONENT_TYPE_SINT32_KHR: "s32",
    vk.VK_COMPONENT_TYPE_UINT8_KHR: "u8",
    vk.VK_COMPONENT_TYPE_UINT16_KHR: "u16",
    vk.VK_COMPONENT_TYPE_UINT32_KHR: "u32",
}


class Kind(StrEnum):
    """What kind of processor a device is."""

    OTHER = "other"
    INTEGRATED = "integrated"
    DISCRETE = "discrete"
    VIRTUAL = "virtual"
    CPU = "cpu"


KINDS = {
    vk.VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU: Kind.INTEGRATED,
    vk.VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU: Kind.DISCRETE,
    vk.VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU: Kind.VIRTUAL,
    vk.VK_PHYSICAL_DEVICE_TYPE_CPU: Kind.CPU,
}


@dataclass(frozen=True)
class MatrixShape:
    """One cooperative-matrix shape of a device: C (m, n) += A (m, k) · B (k, n), inputs and result types."""

    m: int
    n: int
    k: int
    inputs: str
    result: str

    def __str__(self) -> str:
        return f"{self.m}×{self.n}×{self.k} {self.inputs}→{self.result}"


@dataclass(frozen=True)
class Limits:
    """The limits that a dispatch can exceed. group_count and group_size are (x, y, z)."""

    group_count: tuple[int, int, int]
    group_size: tuple[int, int, int]
    invocations: int
    push_constant_bytes: int
    storage_buffer_bytes: int
    timestamp_period_ns: float


@dataclass(frozen=True)
class DeviceInfo:
    """One Vulkan device. index: its place in the loader's list. validation: the layer is there."""

    index: int
    name: str
    driver: str
    kind: Kind
    api_version: str
    subgroup_size: int
    cooperative_matrix: tuple[MatrixShape, ...]
    validation: bool
    limits: Limits


def read_info(functions: Functions, handle: int, index: int, validation: bool) -> DeviceInfo:
    """Ask physical device `handle` for all that the course wants to know."""
    driver = make(vk.VkPhysicalDeviceDriverProperties)
    subgroup = make(vk.VkPhysicalDeviceSubgroupProperties, chain=driver)
    answer = make(vk.VkPhysicalDeviceProperties2, chain=subgroup)
    functions.vkGetPhysicalDeviceProperties2(handle, ctypes.byref(answer))
    properties = answer.properties
    version = properties.apiVersion
    return DeviceInfo(
        index=index,
        name=properties.deviceName.decode(errors="replace"),
        driver=f"{driver.driverName.decode()} {driver.driverInfo.decode()}".strip() or "unnamed driver",
        kind=KINDS.get(properties.deviceType, Kind.OTHER),
        api_version=f"{version >> 22 & 0x7F}.{version >> 12 & 0x3FF}.{version & 0xFFF}",
        subgroup_size=subgroup.subgroupSize,
        cooperative_matrix=_matrix_shapes(functions, handle),
        validation=validation,
        limits=_limits(properties.limits),
    )


def extensions_of(functions: Functions, handle: int) -> set[str]:
    """The names of the device's extensions."""
    count = ctypes.c_uint32()
    functions.vkEnumerateDeviceExtensionProperties(handle, None, ctypes.byref(count), None)
    found = array(vk.VkExtensionProperties, count.value)
    functions.vkEnumerateDeviceExtensionProperties(handle, None, ctypes.byref(count), found)
    return {extension.extensionName.decode() for extension in found}


def _limits(limits) -> Limits:
    return Limits(
        group_count=tuple(limits.maxComputeWorkGroupCount),
        group_size=tuple(limits.maxComputeWorkGroupSize),
        invocations=limits.maxComputeWorkGroupInvocations,
        push_constant_bytes=limits.maxPushConstantsSize,
        storage_buffer_bytes=limits.maxStorageBufferRange,
        timestamp_period_ns=limits.timestampPeriod,
    )


def _matrix_shapes(functions: Functions, handle: int) -> tuple[MatrixShape, ...]:
    if COOPERATIVE_MATRIX not in extensions_of(functions, handle):
        return ()
    ask = functions.vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR
    count = ctypes.c_uint32()
    ask(handle, ctypes.byref(count), None)
    found = array(vk.VkCooperativeMatrixPropertiesKHR, count.value)
    for entry in found:
        entry.sType = vk.VkCooperativeMatrixPropertiesKHR.stype
    ask(handle, ctypes.byref(count), found)
    shapes = (MatrixShape(e.MSize, e.NSize, e.KSize, _component(e.AType), _component(e.ResultType)) for e in found)
    return tuple(dict.fromkeys(shapes))


def _component(value: int) -> str:
    return COMPONENTS.get(value, f"type {value}")
