"""Descriptor sets that are made once for a kernel and its buffers, and found again."""

import ctypes
from collections import defaultdict
from collections.abc import Sequence
from ctypes import byref, c_uint64, c_void_p
from typing import TYPE_CHECKING

from helpers.edge.vulkan import binding as vk
from helpers.edge.vulkan.loader import Functions, array, make

if TYPE_CHECKING:
    from helpers.edge.vulkan.buffer import Allocation

SETS_OF_A_POOL = 64
BUFFERS_OF_A_SET = 8
Owner = tuple[str, int]


class Descriptors:
    """The descriptor sets of a device. A set goes when its layout or one of its buffers goes."""

    def __init__(self, functions: Functions, device: c_void_p):
        self._functions, self._device = functions, device
        self._sets: dict[tuple, tuple[int, ctypes.Array]] = {}
        self._owned: dict[Owner, set[tuple]] = defaultdict(set)
        self._room: dict[int, list[int]] = {}

    def find(self, layout: int, bindings: Sequence[int], buffers: Sequence["Allocation"]) -> ctypes.Array:
        """The set of `layout` that binds `buffers` in the order of `bindings`, made on first use; an array of one."""
        key = (layout, *[buffer.handle for buffer in buffers])
        if known := self._sets.get(key):
            return known[1]
        pool, made = self._allocate(layout, len(buffers))
        self._write(made[0], bindings, buffers)
        self._sets[key] = pool, made
        for owner in [("layout", layout), *[("buffer", buffer.handle) for buffer in buffers]]:
            self._owned[owner].add(key)
        return made

    def forget(self, owner: Owner) -> None:
        """Free the sets that name a buffer or a layout which is about to be destroyed."""
        for key in self._owned.pop(owner, ()):
            pool, gone = self._sets.pop(key)
            for other in {("layout", key[0]), *(("buffer", handle) for handle in key[1:])} - {owner}:
                self._owned[other].discard(key)
            self._functions.vkFreeDescriptorSets(self._device, pool, 1, gone)
            room = self._room[pool]
            room[0], room[1] = room[0] + 1, room[1] + len(key) - 1

    def destroy(self) -> None:
        """Destroy the pools, and with them all sets."""
        for pool in self._room:
            self._functions.vkDestroyDescriptorPool(self._device, pool, None)
        self._room.clear()

    def _allocate(self, layout: int, count: int) -> tuple[int, ctypes.Array]:
        made = array(c_uint64, 1)
        pool = self._pool_with_room(count)
        allocate = make(
            vk.VkDescriptorSetAllocateInfo,
            descriptorPool=pool,
            descriptorSetCount=1,
            pSetLayouts=array(c_uint64, [layout]),
        )
        self._functions.vkAllocateDescriptorSets(self._device, byref(allocate), made)
        room = self._room[pool]
        room[0], room[1] = room[0] - 1, room[1] - count
        return pool, made

    def _pool_with_room(self, count: int) -> int:
        for pool, (sets, buffers) in self._room.items():
            if sets and buffers >= count:
                return pool
        pool = c_uint64()
        buffers = max(SETS_OF_A_POOL * BUFFERS_OF_A_SET, count)
        size = vk.VkDescriptorPoolSize(vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, buffers)
        create = make(
            vk.VkDescriptorPoolCreateInfo,
            flags=vk.VK_DESCRIPTOR_POOL_CREATE_FREE_DESCRIPTOR_SET_BIT,
            maxSets=SETS_OF_A_POOL,
            poolSizeCount=1,
            pPoolSizes=ctypes.pointer(size),
        )
        self._functions.vkCreateDescriptorPool(self._device, byref(create), None, byref(pool))
        self._room[pool.value] = [SETS_OF_A_POOL, buffers]
        return pool.value

    def _write(self, made: int, bindings: Sequence[int], buffers: Sequence["Allocation"]) -> None:
        infos = [vk.VkDescriptorBufferInfo(buffer.handle, 0, buffer.nbytes) for buffer in buffers]
        writes = [
            make(
                vk.VkWriteDescriptorSet,
                dstSet=made,
                dstBinding=number,
                descriptorCount=1,
                descriptorType=vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                pBufferInfo=ctypes.pointer(info),
            )
            for number, info in zip(bindings, infos)
        ]
        self._functions.vkUpdateDescriptorSets(
            self._device, len(writes), array(vk.VkWriteDescriptorSet, writes), 0, None
        )
