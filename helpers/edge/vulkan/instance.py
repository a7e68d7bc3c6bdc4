"""The Vulkan instance: layers, validation messages, and the devices behind it."""

import atexit
import ctypes
import weakref
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_uint32, c_void_p, cast
from dataclasses import dataclass

from helpers.edge.vulkan import binding as vk
from helpers.edge.vulkan.info import DeviceInfo, read_info
from helpers.edge.vulkan.loader import Functions, NoVulkan, VulkanError, array, find_library, make

VALIDATION_LAYER = "VK_LAYER_KHRONOS_validation"
DEBUG_UTILS = "VK_EXT_debug_utils"
PORTABILITY = "VK_KHR_portability_enumeration"
PORTABILITY_BIT = 1
API_VERSION = 1 << 22 | 2 << 12
SEVERITIES = {
    vk.VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT: "warning",
    vk.VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT: "error",
}
CALLBACK = CFUNCTYPE(c_uint32, c_uint32, c_uint32, POINTER(vk.VkDebugUtilsMessengerCallbackDataEXT), c_void_p)
_live: "weakref.WeakSet[Instance]" = weakref.WeakSet()


@dataclass(frozen=True)
class Message:
    """What the validation layer said: severity (`warning`, `error`), the rule's name, the text."""

    severity: str
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.severity} {self.rule}: {self.text}"


class Instance:
    """A connection to the loader. Messages of the validation layer gather in `messages`.

    validation: use the Khronos validation layer where it is installed. Raises `NoVulkan` without
    a loader or a driver. Close it before Python ends, which `close_all` at exit does otherwise: a
    driver whose objects outlive the program aborts it.
    """

    def __init__(self, validation: bool = True):
        self.library = find_library()
        plain = Functions(self.library)
        layers = [VALIDATION_LAYER] if validation and VALIDATION_LAYER in _layers(plain) else []
        available = _extensions(plain, layers[:1])
        extensions = [name for name in (DEBUG_UTILS, PORTABILITY) if name in available]
        self.validation = bool(layers) and DEBUG_UTILS in extensions
        self.messages: list[Message] = []
        self._callback = CALLBACK(self._receive)
        self._watch = self._watcher() if self.validation else None
        self.handle = c_void_p()
        try:
            plain.vkCreateInstance(byref(self._create_info(layers, extensions)), None, byref(self.handle))
        except VulkanError as error:
            raise NoVulkan(f"the loader found no driver ({error.what})", mend=_INSTALL_DRIVER) from None
        self.functions = Functions(self.library, self.handle)
        self._messenger = self._listen() if self._watch else None
        self.children: weakref.WeakSet = weakref.WeakSet()
        _live.add(self)

    def physical_devices(self) -> list[int]:
        """The handles of the devices, in the loader's order."""
        count = c_uint32()
        self.functions.vkEnumeratePhysicalDevices(self.handle, byref(count), None)
        handles = array(c_void_p, count.value)
        self.functions.vkEnumeratePhysicalDevices(self.handle, byref(count), handles)
        return list(handles)

    def infos(self) -> tuple[DeviceInfo, ...]:
        """What each device says of itself, in the loader's order."""
        return tuple(
            read_info(self.functions, handle, index, self.validation)
            for index, handle in enumerate(self.physical_devices())
        )

    def take_messages(self) -> tuple[Message, ...]:
        """The messages since the last call, which is how each reaches the cell that caused it."""
        taken, self.messages[:] = tuple(self.messages), []
        return taken

    def close(self) -> None:
        """Destroy the devices that are still open, then the instance; harmless when closed."""
        if not self.handle:
            return
        for child in list(self.children):
            child.close()
        if self._messenger:
            self.functions.vkDestroyDebugUtilsMessengerEXT(self.handle, self._messenger, None)
        self.functions.vkDestroyInstance(self.handle, None)
        self.handle = None
        _live.discard(self)

    def _create_info(self, layers: list[str], extensions: list[str]):
        application = make(vk.VkApplicationInfo, pApplicationName=b"shards-to-shaders", apiVersion=API_VERSION)
        return make(
            vk.VkInstanceCreateInfo,
            chain=self._watch,
            flags=PORTABILITY_BIT if PORTABILITY in extensions else 0,
            pApplicationInfo=ctypes.pointer(application),
            enabledLayerCount=len(layers),
            ppEnabledLayerNames=array(c_char_p, [name.encode() for name in layers]),
            enabledExtensionCount=len(extensions),
            ppEnabledExtensionNames=array(c_char_p, [name.encode() for name in extensions]),
        )

    def _watcher(self):
        return make(
            vk.VkDebugUtilsMessengerCreateInfoEXT,
            messageSeverity=sum(SEVERITIES),
            messageType=vk.VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT
            | vk.VK_DEBUG_UTILS_MESSAGE_TYPE_PERFORMANCE_BIT_EXT,
            pfnUserCallback=cast(self._callback, c_void_p).value,
        )

    def _listen(self):
        messenger = ctypes.c_uint64()
        self.functions.vkCreateDebugUtilsMessengerEXT(self.handle, byref(self._watch), None, byref(messenger))
        return messenger.value

    def _receive(self, severity: int, kinds: int, data, user) -> int:
        content = data.contents
        rule = (content.pMessageIdName or b"").decode(errors="replace")
        text = (content.pMessage or b"").decode(errors="replace")
        self.messages.append(Message(SEVERITIES.get(severity, "note"), rule, text))
        return 0


_INSTALL_DRIVER = "Debian: apt-get install mesa-vulkan-drivers; elsewhere the driver of your GPU"


def _layers(functions: Functions) -> set[str]:
    count = c_uint32()
    functions.vkEnumerateInstanceLayerProperties(byref(count), None)
    found = array(vk.VkLayerProperties, count.value)
    functions.vkEnumerateInstanceLayerProperties(byref(count), found)
    return {layer.layerName.decode() for layer in found}


def _extensions(functions: Functions, layers: list[str]) -> set[str]:
    names = set()
    for layer in [None, *(name.encode() for name in layers)]:
        count = c_uint32()
        functions.vkEnumerateInstanceExtensionProperties(layer, byref(count), None)
        found = array(vk.VkExtensionProperties, count.value)
        functions.vkEnumerateInstanceExtensionProperties(layer, byref(count), found)
        names |= {extension.extensionName.decode() for extension in found}
    return names


def devices() -> tuple[DeviceInfo, ...]:
    """Every Vulkan device of this machine; () without a loader or driver (`why_none` says why)."""
    try:
        instance = Instance()
    except NoVulkan:
        return ()
    try:
        return instance.infos()
    finally:
        instance.close()


def why_none() -> str:
    """Why `devices()` is empty, and what to install; '' when there are devices."""
    try:
        instance = Instance()
    except NoVulkan as error:
        return f"{error.what}; {error.mend}"
    found = instance.physical_devices()
    instance.close()
    return "" if found else f"the loader lists no device; {_INSTALL_DRIVER}"


@atexit.register
def close_all() -> None:
    """Close every instance that is still open."""
    for instance in list(_live):
        instance.close()
