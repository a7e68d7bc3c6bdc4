"""The optional abilities of a device that the course asks about, and how each is found and switched on."""

import ctypes
from dataclasses import dataclass

from helpers.edge.vulkan import binding as vk
from helpers.edge.vulkan.loader import Functions, array, make

COOPERATIVE_MATRIX = "VK_KHR_cooperative_matrix"
HOST_IMPORT = "VK_EXT_external_memory_host"
HOST_POINTER = vk.VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT
BUFFER_USAGE = (
    vk.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | vk.VK_BUFFER_USAGE_TRANSFER_SRC_BIT | vk.VK_BUFFER_USAGE_TRANSFER_DST_BIT
)
PORTABILITY_SUBSET = "VK_KHR_portability_subset"
LEFT_OFF = frozenset({"float64"})  # rare on edge devices: a shader that needs it hears from the validation layer
LEAST_API = (1, 2)
IN_1_3 = frozenset(
    {"VK_EXT_subgroup_size_control", "VK_KHR_shader_integer_dot_product", "VK_KHR_shader_non_semantic_info"}
)


@dataclass(frozen=True)
class Feature:
    """One ability. extension: the device extension that brings it, or "" for Vulkan 1.2 itself.

    struct, member: where the driver says whether it is there; None when the extension alone says it.
    """

    name: str
    extension: str
    struct: type | None
    member: str


FEATURES = (
    Feature("robust_access", "", vk.VkPhysicalDeviceFeatures, "robustBufferAccess"),
    Feature("float64", "", vk.VkPhysicalDeviceFeatures, "shaderFloat64"),
    Feature("int64", "", vk.VkPhysicalDeviceFeatures, "shaderInt64"),
    Feature("int16", "", vk.VkPhysicalDeviceFeatures, "shaderInt16"),
    Feature("float16", "", vk.VkPhysicalDeviceShaderFloat16Int8Features, "shaderFloat16"),
    Feature("int8", "", vk.VkPhysicalDeviceShaderFloat16Int8Features, "shaderInt8"),
    Feature("storage16", "", vk.VkPhysicalDevice16BitStorageFeatures, "storageBuffer16BitAccess"),
    Feature("storage8", "", vk.VkPhysicalDevice8BitStorageFeatures, "storageBuffer8BitAccess"),
    Feature("scalar_layout", "", vk.VkPhysicalDeviceScalarBlockLayoutFeatures, "scalarBlockLayout"),
    Feature(
        "subgroup_types", "", vk.VkPhysicalDeviceShaderSubgroupExtendedTypesFeatures, "shaderSubgroupExtendedTypes"
    ),
    Feature("memory_model", "", vk.VkPhysicalDeviceVulkanMemoryModelFeatures, "vulkanMemoryModel"),
    Feature("device_scope", "", vk.VkPhysicalDeviceVulkanMemoryModelFeatures, "vulkanMemoryModelDeviceScope"),
    Feature(
        "subgroup_size_control",
        "VK_EXT_subgroup_size_control",
        vk.VkPhysicalDeviceSubgroupSizeControlFeatures,
        "subgroupSizeControl",
    ),
    Feature(
        "full_subgroups",
        "VK_EXT_subgroup_size_control",
        vk.VkPhysicalDeviceSubgroupSizeControlFeatures,
        "computeFullSubgroups",
    ),
    Feature(
        "dot_product",
        "VK_KHR_shader_integer_dot_product",
        vk.VkPhysicalDeviceShaderIntegerDotProductFeatures,
        "shaderIntegerDotProduct",
    ),
    Feature("bfloat16", "VK_KHR_shader_bfloat16", vk.VkPhysicalDeviceShaderBfloat16FeaturesKHR, "shaderBFloat16Type"),
    Feature(
        "cooperative_matrix",
        COOPERATIVE_MATRIX,
        vk.VkPhysicalDeviceCooperativeMatrixFeaturesKHR,
        "cooperativeMatrix",
    ),
    Feature("host_import", HOST_IMPORT, None, ""),
    Feature("shader_printf", "VK_KHR_shader_non_semantic_info", None, ""),
)
SUBGROUP_OPERATIONS = {
    "subgroup_basic": vk.VK_SUBGROUP_FEATURE_BASIC_BIT,
    "subgroup_vote": vk.VK_SUBGROUP_FEATURE_VOTE_BIT,
    "subgroup_arithmetic": vk.VK_SUBGROUP_FEATURE_ARITHMETIC_BIT,
    "subgroup_ballot": vk.VK_SUBGROUP_FEATURE_BALLOT_BIT,
    "subgroup_shuffle": vk.VK_SUBGROUP_FEATURE_SHUFFLE_BIT,
    "subgroup_shuffle_relative": vk.VK_SUBGROUP_FEATURE_SHUFFLE_RELATIVE_BIT,
    "subgroup_clustered": vk.VK_SUBGROUP_FEATURE_CLUSTERED_BIT,
    "subgroup_quad": vk.VK_SUBGROUP_FEATURE_QUAD_BIT,
}
# Capabilities of a SPIR-V module by number (SPIR-V specification, section 3.2.30), and the ability
# that each needs by the appendix "Vulkan Environment for SPIR-V" of the Vulkan specification.
CAPABILITIES = {
    9: "float16",
    10: "float64",
    11: "int64",
    22: "int16",
    39: "int8",
    61: "subgroup_basic",
    62: "subgroup_vote",
    63: "subgroup_arithmetic",
    64: "subgroup_ballot",
    65: "subgroup_shuffle",
    66: "subgroup_shuffle_relative",
    67: "subgroup_clustered",
    68: "subgroup_quad",
    4433: "storage16",
    4448: "storage8",
    5116: "bfloat16",
    5345: "memory_model",
    5346: "device_scope",
    6016: "dot_product",
    6017: "dot_product",
    6018: "dot_product",
    6019: "dot_product",
    6022: "cooperative_matrix",
}


def extensions_of(functions: Functions, handle: int) -> set[str]:
    """The names of a physical device's extensions."""
    count = ctypes.c_uint32()
    functions.vkEnumerateDeviceExtensionProperties(handle, None, ctypes.byref(count), None)
    found = array(vk.VkExtensionProperties, count.value)
    functions.vkEnumerateDeviceExtensionProperties(handle, None, ctypes.byref(count), found)
    return {extension.extensionName.decode() for extension in found}


def brought(extensions: set[str], api: tuple[int, int]) -> set[str]:
    """The extensions, with those that the device's version of Vulkan contains although it does not list them."""
    return extensions | (IN_1_3 if api >= (1, 3) else set())


def absent_features(functions: Functions, handle: int, api: tuple[int, int]) -> dict[str, str]:
    """Each feature's name, and why the physical device lacks it, or "" where it has it."""
    if api < LEAST_API:
        old = f"the driver speaks Vulkan {api[0]}.{api[1]}, and the course needs {LEAST_API[0]}.{LEAST_API[1]}"
        return {feature.name: old for feature in FEATURES}
    extensions = brought(extensions_of(functions, handle), api)
    structs = _feature_structs(extensions)
    functions.vkGetPhysicalDeviceFeatures2(handle, ctypes.byref(_chain(structs)))
    reasons = {feature.name: _why_absent(feature, extensions, structs) for feature in FEATURES}
    if not reasons["host_import"] and not _imports_buffers(functions, handle):
        reasons["host_import"] = f"the driver has {HOST_IMPORT}, and says that it imports no storage buffer"
    return reasons


def _imports_buffers(functions: Functions, handle: int) -> bool:
    ask = make(vk.VkPhysicalDeviceExternalBufferInfo, usage=BUFFER_USAGE, handleType=HOST_POINTER)
    answer = make(vk.VkExternalBufferProperties)
    functions.vkGetPhysicalDeviceExternalBufferProperties(handle, ctypes.byref(ask), ctypes.byref(answer))
    found = answer.externalMemoryProperties.externalMemoryFeatures
    return bool(found & vk.VK_EXTERNAL_MEMORY_FEATURE_IMPORTABLE_BIT)


def enabling(present: set[str], extensions: set[str]) -> tuple[ctypes.Structure, list[str]]:
    """(the chain for `VkDeviceCreateInfo`, the extensions to name) that switch on the features `present`."""
    wanted = [feature for feature in FEATURES if feature.name in present - LEFT_OFF]
    structs = {feature.struct: make(feature.struct) for feature in wanted if feature.struct}
    for feature in wanted:
        if feature.struct:
            setattr(structs[feature.struct], feature.member, 1)
    names = {feature.extension for feature in wanted} | {PORTABILITY_SUBSET}
    return _chain(structs), sorted(names & extensions)


def _feature_structs(extensions: set[str]) -> dict[type, ctypes.Structure]:
    askable = (feature for feature in FEATURES if feature.extension in extensions | {""} and feature.struct)
    return {feature.struct: make(feature.struct) for feature in askable}


def _chain(structs: dict[type, ctypes.Structure]) -> ctypes.Structure:
    """`VkPhysicalDeviceFeatures2` with the structs behind it; the plain features are read and written in place."""
    head = None
    for kind, struct in structs.items():
        if kind is not vk.VkPhysicalDeviceFeatures:
            struct.pNext = ctypes.addressof(head) if head is not None else None
            struct.kept_alive, head = head, struct
    whole = make(vk.VkPhysicalDeviceFeatures2, chain=head)
    if plain := structs.get(vk.VkPhysicalDeviceFeatures):
        whole.features = plain
        structs[vk.VkPhysicalDeviceFeatures] = whole.features
    return whole


def _why_absent(feature: Feature, extensions: set[str], structs: dict[type, ctypes.Structure]) -> str:
    if feature.extension and feature.extension not in extensions:
        return f"the driver has no {feature.extension}"
    if feature.struct and not getattr(structs[feature.struct], feature.member):
        return f"the driver says no to {feature.member}"
    return ""
