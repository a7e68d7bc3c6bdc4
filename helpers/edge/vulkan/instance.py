"""The Vulkan instance: the driver and the layer that it takes, validation messages, and the devices behind it."""

import atexit
import contextlib
import ctypes
import re
import weakref
from collections.abc import Callable, Iterable, Iterator
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_uint32, c_void_p, cast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from helpers.edge.vulkan import binding as vk
from helpers.edge.vulkan import layers
from helpers.edge.vulkan.info import DeviceInfo, read_info
from helpers.edge.vulkan.layers import Check, Layer
from helpers.edge.vulkan.loader import Functions, NoVulkan, VulkanError, array, environment, find_library, make

if TYPE_CHECKING:
    from helpers.edge.vulkan.drivers import Driver

DEBUG_UTILS = layers.DEBUG_UTILS
PORTABILITY = "VK_KHR_portability_enumeration"
PORTABILITY_BIT = 1
API_VERSION = 1 << 22 | 3 << 12
SEVERITIES = {
    vk.VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT: "warning",
    vk.VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT: "error",
}
INFO = vk.VK_DEBUG_UTILS_MESSAGE_SEVERITY_INFO_BIT_EXT
PRINTED = re.compile(r"debug-?printf", re.IGNORECASE)
# What a build says about itself when a check is switched on, and not about the learner's program.
CHATTER = ("VALIDATION-SETTINGS", "WARNING-GPU-Assisted-Validation", "UNASSIGNED-GPU-Assisted", "WARNING-Setting")
PREAMBLE = re.compile(r"^Validation \w+( Warning)?: \[.*?\] .*?\| MessageID = 0x[0-9a-f]+ \| ", re.DOTALL)
CALLBACK = CFUNCTYPE(c_uint32, c_uint32, c_uint32, POINTER(vk.VkDebugUtilsMessengerCallbackDataEXT), c_void_p)
_live: "weakref.WeakSet[Instance]" = weakref.WeakSet()
# Each is told of every message as it arrives, whoever takes it later: `listener(instance, message)`.
listeners: "list[Callable[[Instance, Message], None]]" = []


@dataclass(frozen=True)
class Message:
    """What the validation layer said.

    severity: `warning`, `error`, or `printf` for a line that a shader printed. rule: the name of
    the rule. call: what the program was doing, such as `running a kernel`.
    """

    severity: str
    rule: str
    text: str
    call: str = ""

    def __str__(self) -> str:
        return f"{self.severity} {self.rule}: {self.text}"


class Instance:
    """A connection to the loader. Messages of the validation layer gather in `messages`.

    validation: use the Khronos validation layer where it is installed. checks: what it is to look
    for besides. driver: the only driver to load, from `drivers()`; the loader's choice otherwise.
    Raises `NoVulkan` without a loader or a driver. Close it before Python ends, which `close_all`
    at exit does otherwise: a driver whose objects outlive the program aborts it.
    """

    def __init__(self, validation: bool = True, checks: Iterable[Check | str] = (), driver: "Driver | None" = None):
        self.library = find_library()
        self.functions = plain = Functions(self.library)
        asked = layers.named_checks(checks)
        self.layer: Layer | None = layers.choose_layer(plain, asked) if validation or asked else None
        surroundings = (self.layer.environment if self.layer else {}) | (driver.environment if driver else {})
        self.messages: list[Message] = []
        self._callback = CALLBACK(self._receive)
        self.call = ""
        self.handle = c_void_p()
        self.children: weakref.WeakSet = weakref.WeakSet()
        self._closing = False
        with environment(surroundings):
            extensions = _extensions(plain, [layers.VALIDATION_LAYER] if self.layer else [])
            self.validation = self.layer is not None and DEBUG_UTILS in extensions
            self.checks = {check: layers.why_not(check, self.layer, asked) for check in sorted(asked)}
            self._create(plain, extensions)
        self.functions = Functions(self.library, self.handle)
        self._messenger = self._listen() if self._watch else None
        _live.add(self)

    def physical_devices(self) -> list[int]:
        """The handles of the devices, in the loader's order; none where a driver finds no hardware for it."""
        count = c_uint32()
        try:
            self.functions.vkEnumeratePhysicalDevices(self.handle, byref(count), None)
        except VulkanError:
            return []
        handles = array(c_void_p, count.value)
        self.functions.vkEnumeratePhysicalDevices(self.handle, byref(count), handles)
        return list(handles)

    def infos(self) -> tuple[DeviceInfo, ...]:
        """What each device says of itself, in the loader's order."""
        return tuple(
            read_info(self.functions, handle, index, self.validation)
            for index, handle in enumerate(self.physical_devices())
        )

    @contextlib.contextmanager
    def during(self, call: str) -> Iterator[None]:
        """Messages that arrive inside the block name `call` as what the program was doing."""
        before, self.call = self.call, call
        try:
            yield
        finally:
            self.call = before

    def take_messages(self) -> tuple[Message, ...]:
        """The messages since the last call, which is how each reaches the cell that caused it."""
        taken, self.messages[:] = tuple(self.messages), []
        return taken

    def close(self, force: bool = False) -> None:
        """Close the devices that are still open, then destroy the instance; harmless when closed.

        Memory that an array still looks at keeps its device until the array is gone, unless
        `force`, which is for the end of the program.
        """
        self._closing = True
        for child in list(self.children):
            child.close(force)
        self.finish()

    def close_with_devices(self) -> None:
        """Close it when its last device is closed, which is now when it has none."""
        self._closing = True
        self.finish()

    def finish(self) -> None:
        """Destroy the instance once it is closing and no device is left; a device calls this at its end."""
        if not self._closing or self.children or not self.handle:
            return
        if self._messenger:
            self.functions.vkDestroyDebugUtilsMessengerEXT(self.handle, self._messenger, None)
        self.functions.vkDestroyInstance(self.handle, None)
        self.handle = None
        _live.discard(self)

    def abandon(self) -> None:
        """Leave everything as it is: for a device that does not end its work, which nothing may destroy."""
        self.handle = None
        _live.discard(self)

    def _create(self, plain: Functions, extensions: set[str]) -> None:
        on = frozenset(check for check, reason in self.checks.items() if not reason)
        self._watch = self._watcher(Check.PRINTF in on) if self.validation else None
        chosen = [name for name in (DEBUG_UTILS, PORTABILITY, layers.FEATURES) if name in extensions]
        if not on:
            chosen = [name for name in chosen if name in (DEBUG_UTILS, PORTABILITY)]
        special = layers.settings(self.layer, on, extensions) if self.layer else None
        if special and self._watch:
            last = special.kept_alive if hasattr(special, "kept_alive") else special
            last.pNext, last.kept_alive = ctypes.addressof(self._watch), self._watch
        create = self._create_info(chosen, special or self._watch)
        try:
            plain.vkCreateInstance(byref(create), None, byref(self.handle))
        except VulkanError as error:
            self.handle = None
            raise NoVulkan(f"the loader found no driver ({error.what})", mend=_INSTALL_DRIVER) from None

    def _create_info(self, extensions: list[str], chain):
        application = make(vk.VkApplicationInfo, pApplicationName=b"shards-to-shaders", apiVersion=API_VERSION)
        names = [layers.VALIDATION_LAYER.encode()] if self.layer else []
        return make(
            vk.VkInstanceCreateInfo,
            chain=chain,
            flags=PORTABILITY_BIT if PORTABILITY in extensions else 0,
            pApplicationInfo=ctypes.pointer(application),
            enabledLayerCount=len(names),
            ppEnabledLayerNames=array(c_char_p, names),
            enabledExtensionCount=len(extensions),
            ppEnabledExtensionNames=array(c_char_p, [name.encode() for name in extensions]),
        )

    def _watcher(self, prints: bool):
        return make(
            vk.VkDebugUtilsMessengerCreateInfoEXT,
            messageSeverity=sum(SEVERITIES) | (INFO if prints else 0),
            messageType=vk.VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT
            | vk.VK_DEBUG_UTILS_MESSAGE_TYPE_PERFORMANCE_BIT_EXT,
            pfnUserCallback=cast(self._callback, c_void_p).value,
        )

    def _listen(self):
        messenger = ctypes.c_uint64()
        self._watch.pNext = None
        self.functions.vkCreateDebugUtilsMessengerEXT(self.handle, byref(self._watch), None, byref(messenger))
        return messenger.value

    def _receive(self, severity: int, kinds: int, data, user) -> int:
        content = data.contents
        rule = (content.pMessageIdName or b"").decode(errors="replace")
        text = PREAMBLE.sub("", (content.pMessage or b"").decode(errors="replace"))
        if PRINTED.search(rule):
            self._keep(Message("printf", rule, _printed(text), self.call))
        elif severity in SEVERITIES and not rule.startswith(CHATTER):
            self._keep(Message(SEVERITIES[severity], rule, text, self.call))
        return 0

    def _keep(self, message: Message) -> None:
        self.messages.append(message)
        for listener in listeners:
            listener(self, message)


_INSTALL_DRIVER = "Debian: apt-get install mesa-vulkan-drivers; elsewhere the driver of your GPU"


def _printed(text: str) -> str:
    """The line that the shader printed, without what the layer puts before it."""
    return re.split(r" \| |DebugPrintf:\n", text)[-1].strip()


def _extensions(functions: Functions, layer_names: list[str]) -> set[str]:
    names = set()
    for layer in [None, *(name.encode() for name in layer_names)]:
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
        instance.close(force=True)
