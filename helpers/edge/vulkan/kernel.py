"""A compute pipeline: a shader with its constants on a device, and what it takes."""

import ctypes
import operator
import struct
from collections.abc import Sequence
from ctypes import byref, c_uint32, c_uint64, c_void_p
from dataclasses import replace
from typing import TYPE_CHECKING

from helpers.edge import spirv as spv
from helpers.edge.vulkan import binding as vk
from helpers.edge.vulkan.access import Access, read_needs
from helpers.edge.vulkan.buffer import Buffer
from helpers.edge.vulkan.features import CAPABILITIES
from helpers.edge.vulkan.loader import VulkanError, array, make
from helpers.edge.vulkan.recording import Dispatch

if TYPE_CHECKING:
    from helpers.edge.vulkan.device import Device


class KernelError(VulkanError):
    """A shader and its arguments that do not fit each other, or do not fit the device."""


class Kernel:
    """A compute shader on a device.

    spirv: a module with one compute entry point. constants: specialization constants by id; the
    others keep their defaults. subgroup_size, full_subgroups: as for `Device.kernel`. accesses:
    (reads, writes) of each buffer, as the shader declares. messages: what the validation layer said
    while it was made. Raises `KernelError` when a constant does
    not exist, when the device lacks what the module needs, or when the workgroup, the subgroup or
    the push constants exceed the device's limits.
    """

    def __init__(
        self,
        device: "Device",
        spirv: bytes,
        constants: dict[int, int | float],
        subgroup_size: int | None = None,
        full_subgroups: bool = False,
    ):
        self.device, self.handle = device, None
        told = len(device.instance.messages)
        self.interface = spv.reflect(spirv, constants)
        needs = read_needs(spirv)
        self._require_abilities(needs.capabilities)
        self._require_fit(constants)
        self._require_subgroups(subgroup_size, full_subgroups)
        self.subgroup_size, self.full_subgroups = subgroup_size, full_subgroups
        self.uses_subgroups = any(CAPABILITIES.get(c, "").startswith("subgroup") for c in needs.capabilities)
        self._elements = _merge(needs.accesses, self.interface.bindings)
        self.accesses = tuple((access.reads, access.writes) for access in self._elements)
        module = device.shader_module(spirv)
        self.set_layout = self._make("DescriptorSetLayout", vk.VkDescriptorSetLayoutCreateInfo, **self._bindings())
        self.layout = self._make("PipelineLayout", vk.VkPipelineLayoutCreateInfo, **self._layout_fields())
        try:
            self.handle = self._pipeline(module, constants)
        except VulkanError:
            self._destroy_layouts()
            raise
        self.messages = tuple(device.instance.messages[told:])
        device.children.add(self)

    def run(self, groups: Sequence[int], buffers: Sequence[Buffer], push: bytes = b"") -> Dispatch:
        """Dispatch `groups` workgroups and wait for the end.

        groups: one to three counts. buffers: one a binding, in the order of the binding numbers.
        push: the push constants, as `struct.pack` makes them. The host's writes are visible to the
        shader, and the shader's to the host afterwards. Raises `KernelError` before anything runs
        when the arguments do not fit the shader or the device. To run the same again and again, or
        several in a row, use `Device.record`.
        """
        with self.device.record() as recording:
            recording.dispatch(self, groups, buffers, push)
        done = recording.submit_once().dispatches[0]
        return replace(done, messages=recording.messages + done.messages) if recording.messages else done

    def destroy(self) -> None:
        """Destroy the pipeline and its parts; harmless when destroyed."""
        if self.handle is None:
            return
        device = self.device
        if device.usable:
            device.descriptors.forget(("layout", self.set_layout))
            device.functions.vkDestroyPipeline(device.handle, self.handle, None)
            self._destroy_layouts()
        self.handle = None
        device.children.discard(self)

    __del__ = destroy

    def require_arguments(
        self, groups: Sequence[int], buffers: Sequence[Buffer], push: bytes
    ) -> tuple[int, int, int]:
        """The workgroups (x, y, z), after checking all arguments of a dispatch; `KernelError` says what is wrong."""
        interface, device = self.interface, self.device
        groups = (*groups, 1, 1)[: max(3, len(groups))]
        most = device.info.limits.group_count
        if self.handle is None:
            raise KernelError("the kernel was destroyed with its device", mend="make a new one")
        if len(buffers) != len(interface.bindings):
            wanted = ", ".join(map(str, interface.bindings)) or "none"
            raise KernelError(
                f"{len(buffers)} buffers for {len(interface.bindings)} bindings",
                where="the shader's storage buffers",
                mend=f"pass one buffer for each binding: {wanted}",
            )
        if len(push) != interface.push_bytes:
            raise KernelError(
                f"{len(push)} bytes of push constants, but the shader reads {interface.push_bytes}",
                mend="pack the members in the order and with the types of the shader's block",
            )
        if len(groups) != 3 or min(groups) < 1 or any(map(operator.gt, groups, most)):
            raise KernelError(f"{groups} workgroups", mend=f"use 1 to {most} workgroups a direction")
        for buffer, access in zip(buffers, self._elements):
            if buffer.device is not device or buffer.handle is None:
                what = "was freed" if buffer.handle is None else "lives on another device"
                raise KernelError(f"a buffer of {buffer.nbytes} bytes {what}", mend="make one on this device")
            if access.writes and not buffer.writable:
                raise KernelError(
                    "the shader may write to an imported array that is read-only",
                    where=f"binding {access.binding}",
                    mend="declare it readonly in the shader, or import a writable array",
                )
            if access.element and access.element != buffer.dtype_name and buffer.dtype.kind != "u":
                raise KernelError(
                    f"a {buffer.dtype} buffer where the shader has an array of {access.element}",
                    where=f"binding {access.binding}",
                    mend=f"make the buffer with dtype {access.element}, or as the unsigned integers of its bits",
                )
        return groups

    def _require_abilities(self, capabilities: frozenset[int]) -> None:
        info = self.device.info
        for ability in sorted({CAPABILITIES[number] for number in capabilities if number in CAPABILITIES}):
            if reason := info.why_not(ability):
                raise KernelError(
                    f"the shader needs {ability}: {reason}",
                    where=info.name,
                    mend=f"use another kernel, or a device that has it: open_device(needs=({ability!r},))",
                )

    def _require_fit(self, constants: dict[int, int]) -> None:
        limits, interface = self.device.info.limits, self.interface
        unknown = sorted(set(constants) - set(interface.constants))
        if unknown:
            there = ", ".join(map(str, interface.constants)) or "none"
            raise KernelError(f"the shader has no specialization constant {unknown[0]}", mend=f"it has: {there}")
        size = interface.local_size
        invocations = size[0] * size[1] * size[2]
        if invocations > limits.invocations or any(s > most for s, most in zip(size, limits.group_size)):
            raise KernelError(
                f"a workgroup of {size} has {invocations} invocations",
                where=self.device.info.name,
                mend=f"stay within {limits.group_size} and {limits.invocations} in all",
            )
        if interface.push_bytes > limits.push_constant_bytes:
            raise KernelError(
                f"{interface.push_bytes} bytes of push constants",
                where=self.device.info.name,
                mend=f"use {limits.push_constant_bytes} at most, or a buffer",
            )

    def _require_subgroups(self, size: int | None, full: bool) -> None:
        info, local = self.device.info, self.interface.local_size
        least, most = info.subgroup_sizes
        for asked, ability in ((size is not None, "subgroup_size_control"), (full, "full_subgroups")):
            if asked and (reason := info.why_not(ability)):
                raise KernelError(f"{ability} is not to be had: {reason}", where=info.name, mend="do without it")
        if size is not None and (size & (size - 1) or not least <= size <= most):
            raise KernelError(
                f"a subgroup of {size}", where=info.name, mend=f"use a power of two from {least} to {most}"
            )
        wanted = size or most
        if full and local[0] % wanted:
            raise KernelError(
                f"a workgroup of {local} does not divide into full subgroups of {wanted}",
                mend=f"make its x a multiple of {wanted}",
            )

    def _make(self, name: str, kind: type, **fields) -> int:
        handle = c_uint64()
        create = getattr(self.device.functions, f"vkCreate{name}")
        create(self.device.handle, byref(make(kind, **fields)), None, byref(handle))
        return handle.value

    def _bindings(self) -> dict:
        entries = [
            vk.VkDescriptorSetLayoutBinding(
                binding=number,
                descriptorType=vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                descriptorCount=1,
                stageFlags=vk.VK_SHADER_STAGE_COMPUTE_BIT,
            )
            for number in self.interface.bindings
        ]
        return {"bindingCount": len(entries), "pBindings": array(vk.VkDescriptorSetLayoutBinding, entries)}

    def _layout_fields(self) -> dict:
        ranges = [vk.VkPushConstantRange(vk.VK_SHADER_STAGE_COMPUTE_BIT, 0, self.interface.push_bytes)]
        ranges = ranges if self.interface.push_bytes else []
        return {
            "setLayoutCount": 1,
            "pSetLayouts": array(c_uint64, [self.set_layout]),
            "pushConstantRangeCount": len(ranges),
            "pPushConstantRanges": array(vk.VkPushConstantRange, ranges),
        }

    def _pipeline(self, module: int, constants: dict[int, int]) -> int:
        values = array(c_uint32, [_word(value) for value in constants.values()])
        entries = [vk.VkSpecializationMapEntry(key, 4 * place, 4) for place, key in enumerate(constants)]
        special = vk.VkSpecializationInfo(
            len(entries),
            array(vk.VkSpecializationMapEntry, entries),
            ctypes.sizeof(values),
            ctypes.cast(values, c_void_p),
        )
        size = self.subgroup_size
        required = size and make(vk.VkPipelineShaderStageRequiredSubgroupSizeCreateInfo, requiredSubgroupSize=size)
        full = vk.VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT
        stage = make(
            vk.VkPipelineShaderStageCreateInfo,
            chain=required or None,
            flags=full if self.full_subgroups else 0,
            stage=vk.VK_SHADER_STAGE_COMPUTE_BIT,
            module=module,
            pName=self.interface.entry.encode(),
            pSpecializationInfo=ctypes.pointer(special),
        )
        create = make(vk.VkComputePipelineCreateInfo, stage=stage, layout=self.layout)
        handle, device = c_uint64(), self.device
        device.functions.vkCreateComputePipelines(
            device.handle, device.pipelines.handle, 1, byref(create), None, byref(handle)
        )
        return handle.value

    def _destroy_layouts(self) -> None:
        functions, device = self.device.functions, self.device.handle
        functions.vkDestroyPipelineLayout(device, self.layout, None)
        functions.vkDestroyDescriptorSetLayout(device, self.set_layout, None)


def _word(value: int | float) -> int:
    """The 32 bits of a specialization constant."""
    return struct.unpack("<I", struct.pack("<f", value))[0] if isinstance(value, float) else value & 0xFFFFFFFF


def _merge(accesses: Sequence[Access], bindings: Sequence[int]) -> tuple[Access, ...]:
    """One access a binding: two variables may name the same one, as `readonly` and `writeonly` views.

    It keeps its element where that is a float: integers are any bits.
    """
    merged = []
    for number in bindings:
        same = [access for access in accesses if access.binding == number]
        elements = {access.element if access.element.startswith("float") else "" for access in same}
        reads, writes = any(access.reads for access in same), any(access.writes for access in same)
        merged.append(Access(number, reads, writes, elements.pop() if len(elements) == 1 else ""))
    return tuple(merged)
