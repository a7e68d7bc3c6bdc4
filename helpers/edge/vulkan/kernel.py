"""A compute pipeline, and one dispatch of it with timestamps."""

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import TYPE_CHECKING

from helpers.edge import spirv as spv
from helpers.edge.vulkan import binding as vk
from helpers.edge.vulkan.buffer import Buffer
from helpers.edge.vulkan.loader import VulkanError, array, make
from helpers.measure import Quantity, measured

if TYPE_CHECKING:
    from helpers.edge.vulkan.device import Device

DEADLINE_NS = 60 * 10**9
COMPUTE = vk.VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT
HOST = vk.VK_PIPELINE_STAGE_HOST_BIT


class KernelError(VulkanError):
    """A shader and its arguments that do not fit each other, or do not fit the device."""


@dataclass(frozen=True)
class Dispatch:
    """One dispatch that has ended.

    groups: workgroups (x, y, z). local_size: invocations of a workgroup (x, y, z). duration: `s`,
    measured between two timestamps of the device, or None where its queue has no timestamps.
    """

    groups: tuple[int, int, int]
    local_size: tuple[int, int, int]
    duration: Quantity | None


class Kernel:
    """A compute shader on a device.

    spirv: a module with one compute entry point. constants: specialization constants by id; the
    others keep their defaults. Raises `KernelError` when a constant does not exist, or the
    workgroup or the push constants exceed the device's limits.
    """

    def __init__(self, device: "Device", spirv: bytes, constants: dict[int, int]):
        self.device = device
        self.interface = spv.reflect(spirv, constants)
        self._require_fit(constants)
        self._module = self._make("ShaderModule", vk.VkShaderModuleCreateInfo, **_code(spirv))
        self._set_layout = self._make("DescriptorSetLayout", vk.VkDescriptorSetLayoutCreateInfo, **self._bindings())
        self._layout = self._make("PipelineLayout", vk.VkPipelineLayoutCreateInfo, **self._layout_fields())
        self.handle = self._pipeline(constants)
        device.children.add(self)

    def run(self, groups: Sequence[int], buffers: Sequence[Buffer], push: bytes = b"") -> Dispatch:
        """Dispatch `groups` workgroups and wait for the end.

        groups: one to three counts. buffers: one a binding, in the order of the binding numbers.
        push: the push constants, as `struct.pack` makes them. The host's writes are visible to the
        shader, and the shader's to the host afterwards. Raises `KernelError` before anything runs
        when the arguments do not fit the shader or the device.
        """
        groups = tuple(groups) + (1,) * (3 - len(tuple(groups)))
        self._require_arguments(groups, buffers, push)
        functions, device = self.device.functions, self.device.handle
        pool, descriptor_set = self._descriptors(buffers)
        queries = self._queries()
        command = self._record(groups, descriptor_set, push, queries)
        try:
            self._submit(command)
            return Dispatch(groups, self.interface.local_size, self._duration(queries))
        finally:
            functions.vkDestroyDescriptorPool(device, pool, None)
            if queries:
                functions.vkDestroyQueryPool(device, queries, None)

    def destroy(self) -> None:
        """Destroy the pipeline and its parts; harmless when destroyed."""
        if self.handle is None:
            return
        functions, device = self.device.functions, self.device.handle
        functions.vkDestroyPipeline(device, self.handle, None)
        functions.vkDestroyPipelineLayout(device, self._layout, None)
        functions.vkDestroyDescriptorSetLayout(device, self._set_layout, None)
        functions.vkDestroyShaderModule(device, self._module, None)
        self.handle = None
        self.device.children.discard(self)

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

    def _require_arguments(self, groups: tuple, buffers: Sequence[Buffer], push: bytes) -> None:
        interface, limits = self.interface, self.device.info.limits
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
        if len(groups) != 3 or not all(0 < count <= most for count, most in zip(groups, limits.group_count)):
            raise KernelError(f"{groups} workgroups", mend=f"use 1 to {limits.group_count} workgroups a direction")
        for buffer in buffers:
            if buffer.handle is None or buffer.device is not self.device:
                what = "was freed" if buffer.handle is None else "lives on another device"
                raise KernelError(f"a buffer of {buffer.nbytes} bytes {what}", mend="make one on this device")

    def _make(self, name: str, kind: type, **fields) -> int:
        handle = c_uint64()
        create = getattr(self.device.functions, f"vkCreate{name}")
        create(self.device.handle, byref(make(kind, **fields)), None, byref(handle))
        return handle.value

    def _bindings(self) -> dict:
        numbers = self.interface.bindings
        entries = [
            vk.VkDescriptorSetLayoutBinding(
                binding=number,
                descriptorType=vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                descriptorCount=1,
                stageFlags=vk.VK_SHADER_STAGE_COMPUTE_BIT,
            )
            for number in numbers
        ]
        return {"bindingCount": len(entries), "pBindings": array(vk.VkDescriptorSetLayoutBinding, entries)}

    def _layout_fields(self) -> dict:
        ranges = [vk.VkPushConstantRange(vk.VK_SHADER_STAGE_COMPUTE_BIT, 0, self.interface.push_bytes)]
        ranges = ranges if self.interface.push_bytes else []
        return {
            "setLayoutCount": 1,
            "pSetLayouts": array(c_uint64, [self._set_layout]),
            "pushConstantRangeCount": len(ranges),
            "pPushConstantRanges": array(vk.VkPushConstantRange, ranges),
        }

    def _pipeline(self, constants: dict[int, int]) -> int:
        values = array(c_uint32, [value & 0xFFFFFFFF for value in constants.values()])
        entries = [vk.VkSpecializationMapEntry(key, 4 * place, 4) for place, key in enumerate(constants)]
        special = vk.VkSpecializationInfo(
            len(entries),
            array(vk.VkSpecializationMapEntry, entries),
            ctypes.sizeof(values),
            ctypes.cast(values, c_void_p),
        )
        stage = make(
            vk.VkPipelineShaderStageCreateInfo,
            stage=vk.VK_SHADER_STAGE_COMPUTE_BIT,
            module=self._module,
            pName=self.interface.entry.encode(),
            pSpecializationInfo=ctypes.pointer(special),
        )
        create = make(vk.VkComputePipelineCreateInfo, stage=stage, layout=self._layout)
        handle = c_uint64()
        self.device.functions.vkCreateComputePipelines(self.device.handle, 0, 1, byref(create), None, byref(handle))
        return handle.value

    def _descriptors(self, buffers: Sequence[Buffer]) -> tuple[int, int]:
        functions, device = self.device.functions, self.device.handle
        size = vk.VkDescriptorPoolSize(vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, max(1, len(buffers)))
        pool = self._make(
            "DescriptorPool",
            vk.VkDescriptorPoolCreateInfo,
            maxSets=1,
            poolSizeCount=1,
            pPoolSizes=ctypes.pointer(size),
        )
        layouts = array(c_uint64, [self._set_layout])
        allocate = make(
            vk.VkDescriptorSetAllocateInfo, descriptorPool=pool, descriptorSetCount=1, pSetLayouts=layouts
        )
        chosen = array(c_uint64, 1)
        functions.vkAllocateDescriptorSets(device, byref(allocate), chosen)
        infos = [vk.VkDescriptorBufferInfo(buffer.handle, 0, buffer.nbytes) for buffer in buffers]
        writes = [
            make(
                vk.VkWriteDescriptorSet,
                dstSet=chosen[0],
                dstBinding=number,
                descriptorCount=1,
                descriptorType=vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                pBufferInfo=ctypes.pointer(info),
            )
            for number, info in zip(self.interface.bindings, infos)
        ]
        functions.vkUpdateDescriptorSets(device, len(writes), array(vk.VkWriteDescriptorSet, writes), 0, None)
        return pool, chosen[0]

    def _queries(self) -> int:
        if not self.device.timestamp_bits:
            return 0
        return self._make("QueryPool", vk.VkQueryPoolCreateInfo, queryType=vk.VK_QUERY_TYPE_TIMESTAMP, queryCount=2)

    def _record(self, groups: tuple, descriptor_set: int, push: bytes, queries: int):
        functions = self.device.functions
        command = self._command_buffer()
        functions.vkBeginCommandBuffer(command, byref(make(vk.VkCommandBufferBeginInfo, flags=1)))
        functions.vkCmdBindPipeline(command, vk.VK_PIPELINE_BIND_POINT_COMPUTE, self.handle)
        sets = array(c_uint64, [descriptor_set])
        functions.vkCmdBindDescriptorSets(
            command, vk.VK_PIPELINE_BIND_POINT_COMPUTE, self._layout, 0, 1, sets, 0, None
        )
        if push:
            functions.vkCmdPushConstants(
                command, self._layout, vk.VK_SHADER_STAGE_COMPUTE_BIT, 0, len(push), ctypes.c_char_p(push)
            )
        self._barrier(command, HOST, vk.VK_ACCESS_HOST_WRITE_BIT, COMPUTE, _SHADER_ACCESS)
        if queries:
            functions.vkCmdResetQueryPool(command, queries, 0, 2)
            functions.vkCmdWriteTimestamp(command, vk.VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT, queries, 0)
        functions.vkCmdDispatch(command, *groups)
        if queries:
            functions.vkCmdWriteTimestamp(command, COMPUTE, queries, 1)
        self._barrier(command, COMPUTE, vk.VK_ACCESS_SHADER_WRITE_BIT, HOST, vk.VK_ACCESS_HOST_READ_BIT)
        functions.vkEndCommandBuffer(command)
        return command

    def _command_buffer(self):
        allocate = make(
            vk.VkCommandBufferAllocateInfo,
            commandPool=self.device.commands,
            level=vk.VK_COMMAND_BUFFER_LEVEL_PRIMARY,
            commandBufferCount=1,
        )
        commands = array(c_void_p, 1)
        self.device.functions.vkAllocateCommandBuffers(self.device.handle, byref(allocate), commands)
        return commands[0]

    def _barrier(self, command, stage: int, access: int, next_stage: int, next_access: int) -> None:
        """Coherent memory still needs this: a fence alone makes nothing visible to the host."""
        memory = make(vk.VkMemoryBarrier, srcAccessMask=access, dstAccessMask=next_access)
        self.device.functions.vkCmdPipelineBarrier(command, stage, next_stage, 0, 1, byref(memory), 0, None, 0, None)

    def _submit(self, command) -> None:
        functions, device = self.device.functions, self.device.handle
        fence = self._make("Fence", vk.VkFenceCreateInfo)
        commands = array(c_void_p, [command])
        submit = make(vk.VkSubmitInfo, commandBufferCount=1, pCommandBuffers=commands)
        try:
            functions.vkQueueSubmit(self.device.queue, 1, byref(submit), fence)
            waited = functions.vkWaitForFences(device, 1, array(c_uint64, [fence]), 1, DEADLINE_NS)
            if waited == vk.VK_TIMEOUT:
                functions.vkDeviceWaitIdle(device)
                raise KernelError("the dispatch took more than a minute", mend="dispatch less, or look for a loop")
        finally:
            functions.vkDestroyFence(device, fence, None)
            functions.vkFreeCommandBuffers(device, self.device.commands, 1, commands)

    def _duration(self, queries: int) -> Quantity | None:
        if not queries:
            return None
        ticks = array(c_uint64, 2)
        flags = vk.VK_QUERY_RESULT_64_BIT | vk.VK_QUERY_RESULT_WAIT_BIT
        self.device.functions.vkGetQueryPoolResults(
            self.device.handle, queries, 0, 2, 16, ctypes.cast(ticks, c_void_p), 8, flags
        )
        mask = (1 << self.device.timestamp_bits) - 1
        elapsed = (ticks[1] - ticks[0]) & mask
        return measured(elapsed * self.device.info.limits.timestamp_period_ns * 1e-9, "s")


_SHADER_ACCESS = vk.VK_ACCESS_SHADER_READ_BIT | vk.VK_ACCESS_SHADER_WRITE_BIT


def _code(spirv: bytes) -> dict:
    words = array(c_uint32, memoryview(spirv).cast("I"))
    return {"codeSize": len(spirv), "pCode": words}
