"""The Vulkan loader: finding it, and calling its functions with checked results."""

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from ctypes import CFUNCTYPE, Structure, addressof, c_char_p, c_void_p

from helpers.edge.vulkan import binding as vk
from helpers.errors import CourseError

LIBRARY_VARIABLE = "COURSE_VULKAN_LIBRARY"
NAMES = {
    "linux": ("libvulkan.so.1", "libvulkan.so"),
    "darwin": ("libvulkan.1.dylib", "libvulkan.dylib", "libMoltenVK.dylib"),
    "win32": ("vulkan-1.dll",),
}
_environment_lock = threading.RLock()


class VulkanError(CourseError):
    """A Vulkan function that reported an error."""


class NoVulkan(VulkanError):
    """No Vulkan loader, no driver, or no device of the kind that was asked for."""


class DeviceLost(VulkanError):
    """The device gave up, or is still busy with a dispatch that did not end in time."""


class OutOfMemory(VulkanError):
    """The host or the device has no memory left for what was asked."""


def find_library() -> ctypes.CDLL:
    """Load the Vulkan loader of this system, or the file that `COURSE_VULKAN_LIBRARY` names.

    Raises `NoVulkan` with what to install.
    """
    asked = os.environ.get(LIBRARY_VARIABLE)
    for name in (asked,) if asked else NAMES.get(sys.platform, ()):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise NoVulkan(
        f"there is no Vulkan loader ({asked or 'looked for ' + ', '.join(NAMES.get(sys.platform, ('nothing',)))})",
        mend="Debian: apt-get install libvulkan1 mesa-vulkan-drivers vulkan-validationlayers; macOS: MoltenVK",
    )


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Environment variables that hold inside the block, which is where the loader reads them."""
    with _environment_lock:
        before = {name: os.environ.get(name) for name in values}
        os.environ.update(values)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


class Functions:
    """The commands of one instance as methods; a negative result raises `VulkanError`.

    instance: the handle, or None for the commands that need none.
    """

    def __init__(self, library: ctypes.CDLL, instance: int | None = None):
        self._find = library.vkGetInstanceProcAddr
        self._find.restype, self._find.argtypes = c_void_p, (c_void_p, c_char_p)
        self._instance = instance

    def __getattr__(self, name: str):
        if name not in vk.COMMANDS:
            raise AttributeError(name)
        address = self._find(self._instance, name.encode())
        if not address:
            raise VulkanError(f"the driver has no {name}", mend="update the Vulkan driver")
        result, arguments = vk.COMMANDS[name]
        function = CFUNCTYPE(result, *arguments)(address)
        method = _checked(name, function) if result is ctypes.c_int32 else function
        setattr(self, name, method)
        return method


def _checked(name: str, function):
    def call(*values):
        code = function(*values)
        if code < 0:
            raise error_of(name, code)
        return code

    return call


def error_of(command: str, code: int) -> VulkanError:
    """The error for a negative `VkResult` of a command."""
    what = f"{command} returned {vk.RESULTS.get(code, code)}"
    if code == vk.VK_ERROR_DEVICE_LOST:
        return DeviceLost(what, mend="close the device and open it again; look for a shader that never ends")
    if code in (vk.VK_ERROR_OUT_OF_HOST_MEMORY, vk.VK_ERROR_OUT_OF_DEVICE_MEMORY):
        return OutOfMemory(what, mend="free buffers, or use smaller ones")
    if code == vk.VK_ERROR_INVALID_EXTERNAL_HANDLE:
        return VulkanError(what, mend="the driver cannot import this memory: upload() a copy instead")
    return VulkanError(what)


def make(kind: type[Structure], *, chain: Structure | None = None, **fields) -> Structure:
    """A struct with its type tag set; `chain` becomes its pNext and is kept alive with it.

    Sequences are not converted: pass ctypes arrays, which the struct keeps alive.
    """
    struct = kind(**fields)
    if hasattr(kind, "stype"):
        struct.sType = kind.stype
    if chain is not None:
        struct.pNext = addressof(chain)
        struct.kept_alive = chain
    return struct


def array(kind: type, values) -> ctypes.Array:
    """A ctypes array of `values`, or an empty one with room for that many when given a number."""
    if isinstance(values, int):
        return (kind * values)()
    values = list(values)
    return (kind * len(values))(*values)
