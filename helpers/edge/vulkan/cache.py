"""Compiled pipelines on disk, so that the next program need not compile them again.

The file's name holds what the driver says of itself, because another driver, or the same one in
another version, cannot use it. What a driver makes of it is its own affair: CPU drivers store
nothing here and keep a cache of their own.
"""

import ctypes
import hashlib
import os
import tempfile
from ctypes import byref, c_size_t, c_uint64
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.edge.vulkan import binding as vk
from helpers.edge.vulkan.loader import VulkanError, make

if TYPE_CHECKING:
    from helpers.edge.vulkan.device import Device

FOLDER_VARIABLE = "COURSE_CACHE"
DIGEST_BYTES = 32


def cache_folder() -> Path:
    """`COURSE_CACHE`, or the user's own cache folder."""
    asked = os.environ.get(FOLDER_VARIABLE)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(asked) if asked else Path(home, "shards-to-shaders")


class PipelineCache:
    """The `VkPipelineCache` of a device. path: its file. loaded: bytes that came from there.

    problem: why nothing came from the file, or went there; "" when all went well. A file that is cut
    or was changed is put aside: it is checked by its digest before a driver sees it.
    """

    def __init__(self, device: "Device"):
        self._functions, self._device = device.functions, device.handle
        self.path = cache_folder() / f"pipelines-{_key(device)}.bin"
        self.problem = ""
        data = self._read()
        self.loaded = len(data)
        handle = c_uint64()
        try:
            self._functions.vkCreatePipelineCache(self._device, byref(_create(data)), None, byref(handle))
        except VulkanError as error:
            self.problem, self.loaded = f"the driver refused it: {error.what}", 0
            self._functions.vkCreatePipelineCache(self._device, byref(_create(b"")), None, byref(handle))
        self.handle = handle.value

    def destroy(self) -> None:
        """Write what is new, then destroy the cache."""
        data = self._data()
        if len(data) > self.loaded:
            self._write(data)
        self._functions.vkDestroyPipelineCache(self._device, self.handle, None)

    def _data(self) -> bytes:
        size = c_size_t()
        self._functions.vkGetPipelineCacheData(self._device, self.handle, byref(size), None)
        data = (ctypes.c_char * size.value)()
        self._functions.vkGetPipelineCacheData(self._device, self.handle, byref(size), data)
        return data.raw[: size.value]

    def _read(self) -> bytes:
        try:
            content = self.path.read_bytes()
        except OSError:
            return b""
        digest, data = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        if hashlib.sha256(data).digest() != digest:
            self.problem = f"{self.path} is damaged and was not used"
            return b""
        return data

    def _write(self, data: bytes) -> None:
        """Under a temporary name first, so that two programs that end together leave one whole file."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.path.parent, delete=False) as file:
                file.write(hashlib.sha256(data).digest() + data)
            os.replace(file.name, self.path)
        except OSError as error:
            self.problem = f"nothing was stored: {error}"


def _create(data: bytes):
    kept = ctypes.create_string_buffer(data, len(data)) if data else None
    struct = make(
        vk.VkPipelineCacheCreateInfo,
        initialDataSize=len(data),
        pInitialData=ctypes.cast(kept, ctypes.c_void_p) if kept else None,
    )
    struct.kept_alive = kept
    return struct


def _key(device: "Device") -> str:
    """Vendor, device, driver version and the driver's own cache UUID, in 16 hex digits."""
    answer = make(vk.VkPhysicalDeviceProperties2)
    device.functions.vkGetPhysicalDeviceProperties2(device.physical, byref(answer))
    properties = answer.properties
    numbers = (properties.vendorID, properties.deviceID, properties.driverVersion)
    return hashlib.sha256(repr(numbers).encode() + bytes(properties.pipelineCacheUUID)).hexdigest()[:16]
