"""The Khronos validation layer: which builds of it are here, and which of its checks they know."""

import ctypes
import json
import os
import sysconfig
import tempfile
from collections.abc import Iterable
from ctypes import byref, c_uint32
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from helpers.edge.vulkan import binding as vk
from helpers.edge.vulkan.drivers import NEWER_MESA
from helpers.edge.vulkan.loader import Functions, VulkanError, array, make

VALIDATION_LAYER = "VK_LAYER_KHRONOS_validation"
SETTINGS = "VK_EXT_layer_settings"
FEATURES = "VK_EXT_validation_features"
DEBUG_UTILS = "VK_EXT_debug_utils"
OVERRIDES = ("VK_LAYER_PATH", "VK_ADD_LAYER_PATH", "VK_INSTANCE_LAYERS")
SILENT_WHEN_ROBUST = (1, 4, 310)
KNOWS_SETTINGS = (1, 3, 272)
LIBRARY = "libVkLayer_khronos_validation.so"
BUNDLED = (Path("/usr/lib/chromium"), NEWER_MESA / "root/usr/lib/x86_64-linux-gnu")
LIBRARY_FOLDERS = (f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}", "/usr/lib64", "/usr/lib", "/usr/local/lib")
INSTALL_LAYER = "apt-get install vulkan-validationlayers"


class Check(StrEnum):
    """A check that the validation layer makes only when asked.

    sync: hazards between commands that no barrier keeps apart. bounds: accesses outside of a buffer,
    found while the shader runs. printf: the lines that a shader prints with `debugPrintfEXT`.
    """

    SYNC = "sync"
    BOUNDS = "bounds"
    PRINTF = "printf"


def named_checks(names: Iterable[Check | str]) -> frozenset[Check]:
    """The checks by their names; `VulkanError` for a name that there is not."""
    try:
        return frozenset(map(Check, names))
    except ValueError as error:
        raise VulkanError(f"there is no check: {error}", mend=f"use {', '.join(Check)}") from None


@dataclass(frozen=True)
class Layer:
    """One build of the validation layer. version: of the Vulkan headers that it was built with.

    folder: where its manifest lies, or "" for the one that the loader finds by itself.
    """

    version: tuple[int, int, int]
    folder: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """What the loader must see to take this build."""
        return {"VK_LAYER_PATH": self.folder} if self.folder else {}

    def __str__(self) -> str:
        return ".".join(map(str, self.version))


ENABLES = {
    Check.SYNC: (vk.VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT,),
    Check.BOUNDS: (
        vk.VK_VALIDATION_FEATURE_ENABLE_GPU_ASSISTED_EXT,
        vk.VK_VALIDATION_FEATURE_ENABLE_GPU_ASSISTED_RESERVE_BINDING_SLOT_EXT,
    ),
    Check.PRINTF: (vk.VK_VALIDATION_FEATURE_ENABLE_DEBUG_PRINTF_EXT,),
}


def choose_layer(functions: Functions, asked: frozenset[Check]) -> Layer | None:
    """The newest build on this machine, or None. An environment that names a layer is obeyed.

    Debian's browser brings a build years younger than the one of Debian's own package. For bounds,
    one that also speaks on robust devices is better than a newer one: there nothing can crash.
    """
    installed = _installed(functions)
    if any(name in os.environ for name in OVERRIDES):
        return installed
    found = [layer for layer in (installed and _by_path(installed), *map(_bundled, BUNDLED)) if layer]
    if Check.BOUNDS in asked:
        found = [layer for layer in found if layer.version < SILENT_WHEN_ROBUST] or found
    return max(found, key=lambda layer: layer.version, default=None)


def _installed(functions: Functions) -> Layer | None:
    for layer in _properties(functions):
        if layer.layerName == VALIDATION_LAYER.encode():
            return Layer(_version(layer.specVersion))
    return None


@cache
def _by_path(layer: Layer) -> Layer:
    """The installed build by its full path: its bare name could find another one that is loaded already."""
    for folder in LIBRARY_FOLDERS:
        if (library := Path(folder, LIBRARY)).is_file():
            return Layer(layer.version, _manifest(library, layer.version))
    return layer


@cache
def _bundled(folder: Path) -> Layer | None:
    """The layer in a folder that the loader does not search, with a manifest written for it."""
    try:
        named = _properties(ctypes.CDLL(str(folder / LIBRARY)))
    except (OSError, AttributeError):
        return None
    version = _version(named[0].specVersion) if named else ()
    return Layer(version, _manifest(folder / LIBRARY, version)) if named else None


def _manifest(library: Path, version: tuple[int, int, int]) -> str:
    """The folder of a manifest for `library`."""
    names = (DEBUG_UTILS, FEATURES, *((SETTINGS,) if version >= KNOWS_SETTINGS else ()))
    manifest = {
        "name": VALIDATION_LAYER,
        "type": "GLOBAL",
        "library_path": str(library),
        "api_version": ".".join(map(str, version)),
        "implementation_version": "1",
        "description": "Khronos validation",
        "instance_extensions": [{"name": name, "spec_version": "1"} for name in names],
    }
    path = Path(_folder(library).name, "validation.json")
    path.write_text(json.dumps({"file_format_version": "1.2.0", "layer": manifest}), encoding="utf-8")
    return str(path.parent)


def _properties(functions) -> list[vk.VkLayerProperties]:
    count = c_uint32()
    functions.vkEnumerateInstanceLayerProperties(byref(count), None)
    found = array(vk.VkLayerProperties, count.value)
    functions.vkEnumerateInstanceLayerProperties(byref(count), found)
    return list(found)


def _version(number: int) -> tuple[int, int, int]:
    return number >> 22 & 0x7F, number >> 12 & 0x3FF, number & 0xFFF


@cache
def _folder(library: Path) -> tempfile.TemporaryDirectory:
    """A folder that lasts as long as the program."""
    return tempfile.TemporaryDirectory(prefix="vulkan-layer-")


def why_not(check: Check, layer: Layer | None, asked: frozenset[Check]) -> str:
    """Why a build cannot make a check, together with the others that were `asked`; "" when it can."""
    if layer is None:
        return f"there is no validation layer: {INSTALL_LAYER}"
    if check is Check.PRINTF and Check.BOUNDS in asked and layer.version < (1, 3, 275):
        return f"validation layer {layer} cannot print and check bounds at once: open the device again without bounds"
    return ""


def keeps_bounds(layer: Layer | None, checks: Iterable[Check]) -> bool:
    """Whether the layer skips what lies out of bounds itself, and is silent about it on a robust device.

    Vulkan-ValidationLayers pull request 9639; older builds warn on robust devices.
    """
    return layer is not None and Check.BOUNDS in checks and layer.version >= SILENT_WHEN_ROBUST


def settings(layer: Layer, checks: frozenset[Check], extensions: set[str]):
    """The struct for `VkInstanceCreateInfo` that switches `checks` on, or None when there is none."""
    enables = [value for check in sorted(checks) for value in ENABLES[check]]
    if not enables or FEATURES not in extensions:
        return None
    values = array(ctypes.c_int32, enables)
    chain = _heuristics(checks) if SETTINGS in extensions else None
    return make(
        vk.VkValidationFeaturesEXT,
        chain=chain,
        enabledValidationFeatureCount=len(values),
        pEnabledValidationFeatures=values,
    )


def _heuristics(checks: frozenset[Check]):
    """What a newer layer needs told: to take a shader's declared accesses for accesses, and to print to us."""
    named = {
        "syncval_shader_accesses_heuristic": Check.SYNC in checks,
        "printf_to_stdout": False,
    }
    yes, no = (array(c_uint32, [value]) for value in (1, 0))
    entries = [
        vk.VkLayerSettingEXT(
            VALIDATION_LAYER.encode(),
            name.encode(),
            vk.VK_LAYER_SETTING_TYPE_BOOL32_EXT,
            1,
            ctypes.cast(yes if value else no, ctypes.c_void_p),
        )
        for name, value in named.items()
    ]
    struct = make(
        vk.VkLayerSettingsCreateInfoEXT,
        settingCount=len(entries),
        pSettings=array(vk.VkLayerSettingEXT, entries),
    )
    struct.values = (yes, no)
    return struct
