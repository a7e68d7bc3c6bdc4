"""What a Vulkan device says of itself."""

import ctypes
from dataclasses import dataclass
from enum import IntFlag, StrEnum

from helpers.edge.vulkan import binding as vk
from helpers.edge.vulkan.features import (
    COOPERATIVE_MATRIX,
    SUBGROUP_OPERATIONS,
    absent_features,
    brought,
    extensions_of,
)
from helpers.edge.vulkan.loader import Functions, VulkanError, array, make

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
SCOPES = {vk.VK_SCOPE_SUBGROUP_KHR: "subgroup", vk.VK_SCOPE_WORKGROUP_KHR: "workgroup"}


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


class Memory(IntFlag):
    """The properties of a memory type. `SHARED` is what the host and the device both see."""

    DEVICE_LOCAL = vk.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT
    HOST_VISIBLE = vk.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT
    HOST_COHERENT = vk.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
    HOST_CACHED = vk.VK_MEMORY_PROPERTY_HOST_CACHED_BIT
    SHARED = HOST_VISIBLE | HOST_COHERENT

    def __str__(self) -> str:
        return " | ".join(flag.name for flag in Memory if flag in self) or "NONE"


@dataclass(frozen=True)
class Heap:
    """A body of memory. nbytes: its size. device_local: whether it is the device's own.

    types: the places in `DeviceInfo.memory_types` of the types that are allocated from it.
    """

    nbytes: int
    device_local: bool
    types: tuple[int, ...] = ()


@dataclass(frozen=True)
class MatrixShape:
    """One cooperative-matrix shape of a device: C (m, n) += A (m, k) · B (k, n), inputs and result types.

    scope: the invocations that hold the matrices together. saturating: whether integer sums saturate.
    """

    m: int
    n: int
    k: int
    inputs: str
    result: str
    scope: str = "subgroup"
    saturating: bool = False

    def __str__(self) -> str:
        extra = ("" if self.scope == "subgroup" else f" by {self.scope}") + (" saturating" if self.saturating else "")
        return f"{self.m}×{self.n}×{self.k} {self.inputs}→{self.result}{extra}"


@dataclass(frozen=True)
class Limits:
    """The limits that a dispatch can exceed. group_count and group_size are (x, y, z).

    allocation_bytes: the largest single allocation. import_alignment: what a host pointer and its
    size must be multiples of to be imported, in bytes, or 0 where nothing can be imported.
    """

    group_count: tuple[int, int, int]
    group_size: tuple[int, int, int]
    invocations: int
    push_constant_bytes: int
    storage_buffer_bytes: int
    timestamp_period_ns: float
    allocation_bytes: int = 2**30
    import_alignment: int = 0


@dataclass(frozen=True)
class DeviceInfo:
    """One Vulkan device. index: its place in the loader's list. validation: the layer is there.

    subgroup_size: what it advertises. subgroup_sizes: the least and the largest that a pipeline may
    ask for. memory_types: the properties of each, in the driver's order, the preferred ones first.
    heaps: what they are allocated from, in the driver's order.
    absences: each ability by name, and the reason where it is absent; ask with `can` and `why_not`.
    """

    index: int
    name: str
    driver: str
    kind: Kind
    api_version: str
    subgroup_size: int
    cooperative_matrix: tuple[MatrixShape, ...]
    validation: bool
    limits: Limits
    subgroup_sizes: tuple[int, int] = (0, 0)
    memory_types: tuple[Memory, ...] = ()
    heaps: tuple[Heap, ...] = ()
    absences: tuple[tuple[str, str], ...] = ()

    def can(self, ability: str) -> bool:
        """Whether the device has an ability, such as `float16`, `storage8` or `cooperative_matrix`.

        Raises `VulkanError` with all names for an unknown one.
        """
        return not self.why_not(ability)

    def why_not(self, ability: str) -> str:
        """Why the device lacks an ability; "" when it has it."""
        reasons = dict(self.absences)
        if ability not in reasons:
            raise VulkanError(f"there is no ability {ability!r}", mend=f"ask for one of {', '.join(sorted(reasons))}")
        return reasons[ability]

    @property
    def abilities(self) -> tuple[str, ...]:
        """The names of all abilities that it has."""
        return tuple(name for name, reason in self.absences if not reason)


def read_info(functions: Functions, handle: int, index: int, validation: bool) -> DeviceInfo:
    """Ask physical device `handle` for all that the course wants to know."""
    plain = make(vk.VkPhysicalDeviceProperties2)
    functions.vkGetPhysicalDeviceProperties2(handle, ctypes.byref(plain))
    version = plain.properties.apiVersion
    api = (version >> 22 & 0x7F, version >> 12 & 0x3FF)
    extensions = brought(extensions_of(functions, handle), api)
    more = _more_properties(functions, handle, extensions)
    subgroup, driver = more[vk.VkPhysicalDeviceSubgroupProperties], more[vk.VkPhysicalDeviceDriverProperties]
    sizes = more.get(vk.VkPhysicalDeviceSubgroupSizeControlProperties)
    properties = plain.properties
    shapes = _matrix_shapes(functions, handle, extensions)
    heaps, memory_types = _memory(functions, handle)
    absences = _absences(functions, handle, api, more, memory_types, shapes)
    return DeviceInfo(
        index=index,
        name=properties.deviceName.decode(errors="replace"),
        driver=f"{driver.driverName.decode()} {driver.driverInfo.decode()}".strip() or "unnamed driver",
        kind=KINDS.get(properties.deviceType, Kind.OTHER),
        api_version=f"{api[0]}.{api[1]}.{version & 0xFFF}",
        subgroup_size=subgroup.subgroupSize,
        cooperative_matrix=shapes,
        validation=validation,
        limits=_limits(properties.limits, more),
        subgroup_sizes=(sizes.minSubgroupSize, sizes.maxSubgroupSize) if sizes else (subgroup.subgroupSize,) * 2,
        memory_types=memory_types,
        heaps=heaps,
        absences=tuple(absences.items()),
    )


_PROPERTIES = {
    vk.VkPhysicalDeviceDriverProperties: "",
    vk.VkPhysicalDeviceSubgroupProperties: "",
    vk.VkPhysicalDeviceMaintenance3Properties: "",
    vk.VkPhysicalDeviceSubgroupSizeControlProperties: "VK_EXT_subgroup_size_control",
    vk.VkPhysicalDeviceShaderIntegerDotProductProperties: "VK_KHR_shader_integer_dot_product",
    vk.VkPhysicalDeviceExternalMemoryHostPropertiesEXT: "VK_EXT_external_memory_host",
}


def _more_properties(functions: Functions, handle: int, extensions: set[str]) -> dict[type, ctypes.Structure]:
    found, head = {}, None
    for kind, extension in _PROPERTIES.items():
        if not extension or extension in extensions:
            head = found[kind] = make(kind, chain=head)
    functions.vkGetPhysicalDeviceProperties2(handle, ctypes.byref(make(vk.VkPhysicalDeviceProperties2, chain=head)))
    return found


def _absences(functions: Functions, handle: int, api, more, memory_types, shapes) -> dict[str, str]:
    """The features, and what can be told from properties: each name with the reason, or ""."""
    reasons = absent_features(functions, handle, api)
    operations = more[vk.VkPhysicalDeviceSubgroupProperties].supportedOperations
    in_compute = more[vk.VkPhysicalDeviceSubgroupProperties].supportedStages & vk.VK_SHADER_STAGE_COMPUTE_BIT
    for name, bit in SUBGROUP_OPERATIONS.items():
        has = operations & bit and in_compute
        reasons[name] = "" if has else "the driver does not list it among its subgroup operations"
    if sizes := more.get(vk.VkPhysicalDeviceSubgroupSizeControlProperties):
        stages = sizes.requiredSubgroupSizeStages
        if not reasons["subgroup_size_control"] and not stages & vk.VK_SHADER_STAGE_COMPUTE_BIT:
            reasons["subgroup_size_control"] = "the driver lets no compute shader choose its subgroup size"
    dot = more.get(vk.VkPhysicalDeviceShaderIntegerDotProductProperties)
    fast = dot and dot.integerDotProduct4x8BitPackedSignedAccelerated
    reasons["dot_product_accelerated"] = "" if fast else "the driver has no fast path for packed 8-bit dot products"
    if not reasons["cooperative_matrix"] and not shapes:
        reasons["cooperative_matrix"] = "the driver has the extension and lists no shape"
    unified = any(flags & Memory.SHARED == Memory.SHARED and flags & Memory.DEVICE_LOCAL for flags in memory_types)
    reasons["unified_memory"] = "" if unified else "no memory is both the device's own and visible to the host"
    return reasons


def _limits(limits, more: dict[type, ctypes.Structure]) -> Limits:
    host = more.get(vk.VkPhysicalDeviceExternalMemoryHostPropertiesEXT)
    return Limits(
        group_count=tuple(limits.maxComputeWorkGroupCount),
        group_size=tuple(limits.maxComputeWorkGroupSize),
        invocations=limits.maxComputeWorkGroupInvocations,
        push_constant_bytes=limits.maxPushConstantsSize,
        storage_buffer_bytes=limits.maxStorageBufferRange,
        timestamp_period_ns=limits.timestampPeriod,
        allocation_bytes=more[vk.VkPhysicalDeviceMaintenance3Properties].maxMemoryAllocationSize,
        import_alignment=host.minImportedHostPointerAlignment if host else 0,
    )


def _memory(functions: Functions, handle: int) -> tuple[tuple[Heap, ...], tuple[Memory, ...]]:
    memory = vk.VkPhysicalDeviceMemoryProperties()
    functions.vkGetPhysicalDeviceMemoryProperties(handle, ctypes.byref(memory))
    kinds = memory.memoryTypes[: memory.memoryTypeCount]
    heaps = [
        Heap(
            heap.size,
            bool(heap.flags & vk.VK_MEMORY_HEAP_DEVICE_LOCAL_BIT),
            tuple(index for index, kind in enumerate(kinds) if kind.heapIndex == place),
        )
        for place, heap in enumerate(memory.memoryHeaps[: memory.memoryHeapCount])
    ]
    return tuple(heaps), tuple(Memory(kind.propertyFlags & 15) for kind in kinds)


def _matrix_shapes(functions: Functions, handle: int, extensions: set[str]) -> tuple[MatrixShape, ...]:
    if COOPERATIVE_MATRIX not in extensions:
        return ()
    ask = functions.vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR
    count = ctypes.c_uint32()
    ask(handle, ctypes.byref(count), None)
    found = array(vk.VkCooperativeMatrixPropertiesKHR, count.value)
    for entry in found:
        entry.sType = vk.VkCooperativeMatrixPropertiesKHR.stype
    ask(handle, ctypes.byref(count), found)
    shapes = (
        MatrixShape(
            e.MSize,
            e.NSize,
            e.KSize,
            _component(e.AType),
            _component(e.ResultType),
            SCOPES.get(e.scope, f"scope {e.scope}"),
            bool(e.saturatingAccumulation),
        )
        for e in found
    )
    return tuple(dict.fromkeys(shapes))


def _component(value: int) -> str:
    return COMPONENTS.get(value, f"type {value}")
