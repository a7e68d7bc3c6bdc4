"""A logical device: the queue, the memory types, and the objects that live on it."""

import ctypes
import warnings
import weakref
from collections.abc import Iterable, Sequence
from ctypes import byref, c_float, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from helpers.edge.vulkan import binding as vk
from helpers.edge.vulkan import layers
from helpers.edge.vulkan.buffer import Allocation, Buffer, BufferError, host_array, import_buffer, new_buffer
from helpers.edge.vulkan.cache import PipelineCache
from helpers.edge.vulkan.descriptors import Descriptors
from helpers.edge.vulkan.features import enabling, extensions_of
from helpers.edge.vulkan.info import DeviceInfo, Memory
from helpers.edge.vulkan.instance import Instance, Message
from helpers.edge.vulkan.kernel import Kernel
from helpers.edge.vulkan.layers import Check
from helpers.edge.vulkan.loader import DeviceLost, NoVulkan, VulkanError, array, make
from helpers.edge.vulkan.recording import STUCK, Recording, Slot
from helpers.edge.vulkan.subgroups import SubgroupProbe, SubgroupWarning, probe_subgroups

if TYPE_CHECKING:
    from helpers.edge.vulkan.drivers import Driver

DEADLINE_S = 60.0


@dataclass(frozen=True)
class Copies:
    """Copies of whole buffers since the device was opened.

    count, nbytes: those that the host made, into or out of mapped memory. staged, staged_nbytes:
    those that the device made between a staging buffer and memory of its own.
    """

    count: int = 0
    nbytes: int = 0
    staged: int = 0
    staged_nbytes: int = 0


class Device:
    """A Vulkan device with one compute queue, ready for buffers and kernels.

    `robustBufferAccess` is on: an index too far reads zero or is dropped, and cannot kill the
    process. Every other feature that the course knows is on where the device has it, except
    float64. `copies` counts what was copied to or from buffers, which a mapped array never is.
    deadline_s: how long a submission may take. Close the device, or use it in a `with` block.
    """

    handle: c_void_p | None = None

    def __init__(self, instance: Instance, index: int = 0):
        self.instance, self.functions = instance, instance.functions
        self.info: DeviceInfo = instance.infos()[index]
        self.physical = instance.physical_devices()[index]
        self.handle, self.closed, self.lost, self.deadline_s = None, False, "", DEADLINE_S
        self.children: weakref.WeakSet = weakref.WeakSet()
        self.family, self.timestamp_bits = self._compute_family()
        self.handle = self._create()
        instance.children.add(self)
        self.queue = c_void_p()
        self.functions.vkGetDeviceQueue(self.handle, self.family, 0, byref(self.queue))
        self.commands = self._command_pool()
        self.descriptors = Descriptors(self.functions, self.handle)
        self.pipelines = PipelineCache(self)
        self.copies = Copies()
        # Some builds of the layer hand these over only once the device is idle.
        self.late_messages = any(not self.checks.get(check, "no") for check in (Check.PRINTF, Check.BOUNDS))
        self._modules: dict[bytes, int] = {}
        self._kernels: weakref.WeakValueDictionary[tuple, Kernel] = weakref.WeakValueDictionary()
        self._slots: list[Slot] = []
        self._idle_slots: list[Slot] = []
        self._trusted: bool | None = None

    def __enter__(self) -> "Device":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def __del__(self):
        if self.handle is not None:
            self.close()

    @property
    def usable(self) -> bool:
        """Whether its objects may be destroyed: false once it is gone, or busy without an end."""
        return self.handle is not None and self.lost != STUCK

    @property
    def copied_bytes(self) -> int:
        """The bytes that the host copied to or from buffers."""
        return self.copies.nbytes

    @property
    def checks(self) -> dict[Check, str]:
        """The checks that were asked of the validation layer, each with why it cannot make it, or ""."""
        return self.instance.checks

    def buffer(self, shape: int | tuple[int, ...], dtype=np.float32, memory: Memory = Memory.SHARED) -> Buffer:
        """A zeroed buffer for `shape` elements of a NumPy `dtype`.

        memory: properties that its memory type must have; the driver's first that has them is taken.
        With `Memory.HOST_VISIBLE` among them it is mapped into this process; `Memory.DEVICE_LOCAL`
        alone is a GPU's own memory, reached by `write` and `read`, through staging. Raises `BufferError`.
        """
        self.require_open()
        return new_buffer(self, shape, dtype, Memory(memory))

    def upload(self, values, memory: Memory = Memory.SHARED) -> Buffer:
        """A buffer with a copy of `values`, an array or a CPU tensor; the copy is counted."""
        values = np.ascontiguousarray(host_array(values))
        buffer = self.buffer(values.shape, values.dtype, memory)
        buffer.write(values)
        return buffer

    def import_array(self, values) -> Buffer:
        """A buffer that *is* the memory of `values`, an array or CPU tensor, with no copy.

        The buffer keeps the array alive. Make it with `page_aligned`: its memory must start at a
        multiple of `info.limits.import_alignment`. A read-only array may be bound only where the
        shader declares `readonly`. Raises `BufferError` where it cannot be imported.
        """
        self.require_open()
        return import_buffer(self, values)

    def kernel(
        self,
        spirv: bytes,
        constants: dict[int, int | float] | None = None,
        *,
        subgroup_size: int | None = None,
        full_subgroups: bool = False,
    ) -> Kernel:
        """A compute pipeline from SPIR-V; one that lives already is found again.

        constants: specialization constants by their id. subgroup_size: the size that it must run
        with; the driver's choice otherwise. full_subgroups: each subgroup has all its invocations.
        Raises `KernelError` before the driver sees what the device cannot do.
        """
        self.require_open()
        key = (spirv, tuple(sorted((constants or {}).items())), subgroup_size, full_subgroups)
        kernel = self._kernels.get(key)
        if kernel is None:
            with self.instance.during("making a kernel"):
                kernel = Kernel(self, spirv, constants or {}, subgroup_size, full_subgroups)
            self._kernels[key] = kernel
            if kernel.uses_subgroups:
                self._doubt_subgroups()
        return kernel

    def record(self, *, barriers: bool = True, timestamps: bool = True) -> Recording:
        """An empty recording, to be filled inside its `with` block and submitted as often as you like.

        barriers: place one wherever a dispatch needs what an earlier one wrote; without, only where
        `Recording.barrier()` says. timestamps: time each dispatch, which costs time itself: on a CPU
        driver more than the launch of a small kernel.
        """
        self.require_open()
        return Recording(self, barriers, timestamps)

    def copy(self, source: Buffer, target: Buffer) -> None:
        """Let the device copy a whole buffer into another of the same size; counted as staged."""
        with self.record(timestamps=False) as recording:
            recording.copy(source, target)
        recording.submit_once()
        counted = self.copies
        self.copies = Copies(counted.count, counted.nbytes, counted.staged + 1, counted.staged_nbytes + source.nbytes)

    def fill(self, buffer: Buffer) -> None:
        """Let the device write zeros into a whole buffer."""
        with self.record(timestamps=False) as recording:
            recording.fill(buffer)
        recording.submit_once()

    def count_copy(self, nbytes: int) -> None:
        """Add a copy that the host made to `copies`."""
        counted = self.copies
        self.copies = Copies(counted.count + 1, counted.nbytes + nbytes, counted.staged, counted.staged_nbytes)

    @cached_property
    def subgroups(self) -> SubgroupProbe:
        """What a tiny shader saw of its subgroups, against what the driver advertises; run once."""
        return probe_subgroups(self)

    def take_messages(self) -> tuple[Message, ...]:
        """What the validation layer said since the last call."""
        return self.instance.take_messages()

    def close(self, force: bool = False) -> None:
        """Wait for the device, then destroy everything on it; harmless when closed.

        Memory that an array or a tensor still looks at stays until that is gone, and the Vulkan
        device with it. force: destroy it all the same, for the end of the program.
        """
        if self.handle is None or (self.closed and not force):
            return
        self.closed = True
        if self.lost == STUCK:
            return self._abandon()
        try:
            self.functions.vkDeviceWaitIdle(self.handle)
        except VulkanError as error:
            self.lost = self.lost or error.what
        for child in list(self.children):
            if force or not isinstance(child, Allocation) or not child.views:
                child.destroy()
        self.finish()

    def finish(self) -> None:
        """Destroy the Vulkan device once it is closed and no memory is left; the last memory calls this."""
        if not self.closed or self.children or self.handle is None:
            return
        functions, handle = self.functions, self.handle
        for slot in self._slots:
            slot.destroy()
        self.descriptors.destroy()
        self.pipelines.destroy()
        for module in self._modules.values():
            functions.vkDestroyShaderModule(handle, module, None)
        functions.vkDestroyCommandPool(handle, self.commands, None)
        functions.vkDestroyDevice(handle, None)
        self.handle = None
        self.instance.children.discard(self)
        self.instance.finish()

    def require_open(self) -> None:
        """Raise `VulkanError` when it was closed, and `DeviceLost` when it gave up."""
        if self.closed:
            raise VulkanError("the device was closed", mend="open it again with open_device()")
        if self.lost:
            raise DeviceLost(f"the device gave up earlier: {self.lost}", mend="close it and open it again")

    def give_up(self, reason: str) -> None:
        """Note that nothing more can be submitted, and why."""
        self.lost = self.lost or reason

    def memory_type(self, allowed: int, wanted: Memory) -> int:
        """The first memory type in the bit mask `allowed` with all properties of `wanted`.

        The driver lists the types that it prefers first. Asked for a GPU's own memory, one that the
        host does not see is taken if there is one. Raises `BufferError` with those that there are.
        """
        fitting = [
            index
            for index, flags in enumerate(self.info.memory_types)
            if allowed >> index & 1 and flags & wanted == wanted
        ]
        if not fitting:
            there = "; ".join(dict.fromkeys(map(str, self.info.memory_types)))
            raise BufferError(
                f"no memory type is {wanted}", where=self.info.name, mend=f"ask for less; there are: {there}"
            )
        private = [index for index in fitting if Memory.HOST_VISIBLE not in self.info.memory_types[index]]
        return private[0] if private and wanted == Memory.DEVICE_LOCAL else fitting[0]

    def shader_module(self, spirv: bytes) -> int:
        """The `VkShaderModule` of these bytes, made once."""
        if spirv not in self._modules:
            words = array(c_uint32, memoryview(spirv).cast("I"))
            create = make(vk.VkShaderModuleCreateInfo, codeSize=len(spirv), pCode=words)
            module = c_uint64()
            self.functions.vkCreateShaderModule(self.handle, byref(create), None, byref(module))
            self._modules[spirv] = module.value
        return self._modules[spirv]

    def take_slot(self, timestamps: int) -> Slot:
        """A command buffer with a fence and room for that many timestamps; give it back."""
        if not self._idle_slots:
            self._slots.append(Slot(self.functions, self.handle, self.commands))
            self._idle_slots.append(self._slots[-1])
        slot = self._idle_slots.pop()
        slot.reserve(timestamps)
        return slot

    def give_slot(self, slot: Slot) -> None:
        """Keep a slot for the next recording."""
        self._idle_slots.append(slot)

    def _doubt_subgroups(self) -> None:
        """Warn once when the driver's subgroups are not what it advertises."""
        if self._trusted is None:
            self._trusted = True  # the probe is such a kernel itself
            self._trusted = self.subgroups.honest
            if not self._trusted:
                warnings.warn(
                    f"{self.info.name}: {self.subgroups}. Ask for a size with device.kernel(subgroup_size=…), or "
                    "count with subgroupBallot in the shader",
                    SubgroupWarning,
                    stacklevel=3,
                )

    def _abandon(self) -> None:
        """A dispatch that never ends cannot be waited for, and nothing that it uses may be destroyed."""
        self.handle = None
        self.instance.children.discard(self)
        self.instance.abandon()

    def _compute_family(self) -> tuple[int, int]:
        count = c_uint32()
        self.functions.vkGetPhysicalDeviceQueueFamilyProperties(self.physical, byref(count), None)
        families = array(vk.VkQueueFamilyProperties, count.value)
        self.functions.vkGetPhysicalDeviceQueueFamilyProperties(self.physical, byref(count), families)
        for index, family in enumerate(families):
            if family.queueFlags & vk.VK_QUEUE_COMPUTE_BIT:
                return index, family.timestampValidBits
        raise NoVulkan("the device has no compute queue", where=self.info.name, mend="choose another device")

    def _create(self):
        priority = array(c_float, [1.0])
        queue = make(
            vk.VkDeviceQueueCreateInfo, queueFamilyIndex=self.family, queueCount=1, pQueuePriorities=priority
        )
        wanted = set(self.info.abilities)
        on = {check for check, reason in self.checks.items() if not reason}
        if layers.keeps_bounds(self.instance.layer, on):
            wanted -= {"robust_access"}
        features, names = enabling(wanted, extensions_of(self.functions, self.physical))
        create = make(
            vk.VkDeviceCreateInfo,
            chain=features,
            queueCreateInfoCount=1,
            pQueueCreateInfos=ctypes.pointer(queue),
            enabledExtensionCount=len(names),
            ppEnabledExtensionNames=array(ctypes.c_char_p, [name.encode() for name in names]),
        )
        handle = c_void_p()
        self.functions.vkCreateDevice(self.physical, byref(create), None, byref(handle))
        return handle

    def _command_pool(self) -> int:
        pool = c_uint64()
        create = make(
            vk.VkCommandPoolCreateInfo,
            flags=vk.VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
            queueFamilyIndex=self.family,
        )
        self.functions.vkCreateCommandPool(self.handle, byref(create), None, byref(pool))
        return pool.value


def open_device(
    name: str = "",
    kind: str = "",
    validation: bool = True,
    *,
    needs: Sequence[str] = (),
    checks: Iterable[Check | str] = (),
    driver: "Driver | None" = None,
) -> Device:
    """Open the first device whose name contains `name` and whose kind is `kind`, GPUs first.

    needs: abilities that it must have, such as `cooperative_matrix`; `DeviceInfo.why_not` names them.
    checks: what the validation layer looks for besides: `sync`, `bounds`, `printf`. driver: one of
    `drivers()`, instead of those that the loader chooses. Raises `NoVulkan` when there is no such
    device, naming those that are there and what each lacks.
    """
    if driver is not None and not driver.in_process:
        reason = driver.why_not or "it needs a newer C library: run the program in a child with driver.run(program)"
        raise NoVulkan(f"the driver {driver.name} cannot be loaded", mend=reason)
    instance = Instance(validation, checks, driver)
    try:
        best = _choose(instance.infos(), name, kind, needs)
        return Device(instance, best.index)
    finally:
        instance.close_with_devices()


def _choose(infos: Sequence[DeviceInfo], name: str, kind: str, needs: Sequence[str]) -> DeviceInfo:
    fitting = [info for info in infos if name.lower() in info.name.lower() and kind in ("", info.kind)]
    able = [info for info in fitting if all(info.can(ability) for ability in needs)]
    if able:
        return min(able, key=lambda info: (info.kind == "cpu", info.index))
    there = ", ".join(_describe(info, needs if info in fitting else ()) for info in infos) or "none"
    wanted = " ".join(filter(None, [kind, repr(name) if name else ""])) or "of any kind"
    wanted += f" that can {', '.join(needs)}" if needs else ""
    raise NoVulkan(f"no Vulkan device {wanted}; there: {there}", mend="helpers doctor lists the devices")


def _describe(info: DeviceInfo, needs: Sequence[str]) -> str:
    lacks = [f"{ability}: {info.why_not(ability)}" for ability in needs if not info.can(ability)]
    return f"{info.name} ({'; '.join([info.kind, *lacks])})"
