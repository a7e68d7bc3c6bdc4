import gc
import mmap
import struct
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from helpers.edge import shaders, spirv
from helpers.edge.vulkan import (
    BufferError,
    Heap,
    KernelError,
    Memory,
    VulkanError,
    devices,
    open_device,
    page_aligned,
)
from helpers.edge.vulkan.buffer import DTYPES
from helpers.edge.vulkan.info import _memory

SAXPY = shaders.spirv("saxpy")
PUSH = struct.pack("<If", 64, 1.0)
READS = """#version 450
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) buffer Y { float y[]; };
void main() { y[gl_GlobalInvocationID.x] = x[gl_GlobalInvocationID.x]; }
"""


@pytest.mark.parametrize("dtype", DTYPES.split())
def test_every_dtype_comes_back_as_it_went(device, dtype):
    values = np.arange(11).astype(dtype)
    buffer = device.upload(values)
    assert buffer.dtype == values.dtype and buffer.nbytes == values.nbytes
    assert np.array_equal(buffer.array(), values) and np.array_equal(buffer.read(), values)


@pytest.mark.parametrize("dtype", [bool, complex, object, "U3", ">f4", "datetime64[s]"])
def test_a_dtype_that_no_shader_has_is_refused(device, dtype):
    with pytest.raises(BufferError, match="elements") as caught:
        device.buffer(4, dtype)
    assert "float16" in caught.value.mend


def test_the_flags_are_those_of_the_type_that_was_taken(any_device):
    shared, private = any_device.buffer(64), any_device.buffer(64, memory=Memory.DEVICE_LOCAL)
    assert shared.memory in any_device.info.memory_types and shared.memory & Memory.SHARED == Memory.SHARED
    assert private.memory in any_device.info.memory_types and Memory.DEVICE_LOCAL in private.memory
    assert shared.pointer and not private.pointer
    assert "HOST_VISIBLE" in str(shared.memory) and str(Memory(0)) == "NONE"


def test_every_memory_type_lies_in_one_heap_that_is_as_local_as_the_type(any_device):
    """Vulkan specification, `VkMemoryPropertyFlagBits`: a type is DEVICE_LOCAL if and only if its heap is."""
    info = any_device.info
    placed = [index for heap in info.heaps for index in heap.types]
    assert sorted(placed) == list(range(len(info.memory_types)))
    for heap in info.heaps:
        assert heap.nbytes > 0
        assert {Memory.DEVICE_LOCAL in info.memory_types[index] for index in heap.types} <= {heap.device_local}


def test_heaps_are_read_as_the_driver_lists_them():
    """A GPU with 8 GiB, a window of 256 MiB into them, and 16 GiB of the host; type 4 has a flag of a vendor."""

    def fill(handle, pointer):
        memory = pointer._obj
        for place, heap in enumerate(((8 << 30, 1), (16 << 30, 0), (256 << 20, 3))):
            memory.memoryHeaps[place].size, memory.memoryHeaps[place].flags = heap
        for place, kind in enumerate(((1, 0), (6, 1), (14, 1), (7, 2), (1 | 256, 0))):
            memory.memoryTypes[place].propertyFlags, memory.memoryTypes[place].heapIndex = kind
        memory.memoryHeapCount, memory.memoryTypeCount = 3, 5

    heaps, types = _memory(SimpleNamespace(vkGetPhysicalDeviceMemoryProperties=fill), 0)
    assert heaps == (Heap(2**33, True, (0, 4)), Heap(2**34, False, (1, 2)), Heap(2**28, True, (3,)))
    local, shared = Memory.DEVICE_LOCAL, Memory.SHARED
    assert types == (local, shared, shared | Memory.HOST_CACHED, local | shared, local)


def test_memory_of_the_device_alone_is_reached_through_staging(any_device):
    before = any_device.copies
    private = any_device.buffer((4, 16), memory=Memory.DEVICE_LOCAL)
    with pytest.raises(BufferError, match="not mapped into this process"):
        private.array()
    assert not private.read().any()
    values = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    private.write(values)
    assert np.array_equal(private.read(), values)
    counted = any_device.copies
    assert counted.staged - before.staged == 3 and counted.staged_nbytes - before.staged_nbytes == 3 * 256
    assert counted.count - before.count == 3 and any_device.copied_bytes == counted.nbytes


def test_a_kernel_runs_on_memory_of_the_device_alone(any_device):
    x = any_device.upload(np.full(64, 2, np.float32), memory=Memory.DEVICE_LOCAL)
    y = any_device.upload(np.full(64, 5, np.float32), memory=Memory.DEVICE_LOCAL)
    any_device.kernel(SAXPY).run((1,), [x, y], PUSH)
    assert np.all(y.read() == 7)


def test_the_memory_type_follows_the_drivers_order_and_the_wish():
    """As on a GPU with memory of its own, a small window into it, and system memory."""
    types = (
        Memory.DEVICE_LOCAL,
        Memory.SHARED,
        Memory.SHARED | Memory.HOST_CACHED,
        Memory.DEVICE_LOCAL | Memory.SHARED,
    )
    if not devices():
        pytest.skip("needs a Vulkan device")
    with open_device() as device:
        device.info = replace(device.info, memory_types=types)
        assert device.memory_type(0b1111, Memory.DEVICE_LOCAL) == 0
        assert device.memory_type(0b1111, Memory.SHARED) == 1
        assert device.memory_type(0b1111, Memory.SHARED | Memory.HOST_CACHED) == 2
        assert device.memory_type(0b1111, Memory.SHARED | Memory.DEVICE_LOCAL) == 3
        assert device.memory_type(0b1100, Memory.SHARED) == 2
        assert device.memory_type(0b1000, Memory.DEVICE_LOCAL) == 3
        with pytest.raises(BufferError, match=r"no memory type is DEVICE_LOCAL \| HOST_CACHED") as caught:
            device.memory_type(0b0111, Memory.DEVICE_LOCAL | Memory.HOST_CACHED)
        assert "HOST_VISIBLE | HOST_COHERENT" in caught.value.mend


def test_tensors_go_in_and_what_cannot_is_named(device):
    torch = pytest.importorskip("torch")
    assert np.all(device.upload(torch.full((3, 4), 2.0, requires_grad=True)).array() == 2)
    strided = torch.arange(12.0).reshape(3, 4).T
    assert np.array_equal(device.upload(strided).array(), strided.numpy())
    with pytest.raises(BufferError, match=r"NumPy has no torch\.bfloat16") as caught:
        device.upload(torch.zeros(4, dtype=torch.bfloat16))
    assert "uint16" in caught.value.mend
    with pytest.raises(BufferError, match="a tensor on meta"):
        device.upload(torch.zeros(4, device="meta"))


def test_another_shape_or_dtype_is_not_written(device):
    buffer = device.buffer((2, 3))
    for values in (np.zeros((3, 2), np.float32), np.zeros((2, 3)), np.zeros(6, np.float32), np.float32(1)):
        with pytest.raises(BufferError, match=r"for a float32 buffer of shape \(2, 3\)"):
            buffer.write(values)


def test_floats_of_another_width_are_refused_and_bits_are_not(device):
    x, y = device.buffer(64), device.buffer(64)
    kernel = device.kernel(SAXPY)
    for dtype in (np.float16, np.float64, np.int32):
        with pytest.raises(KernelError, match=f"a {np.dtype(dtype)} buffer where the shader has an array of float32"):
            kernel.run((1,), [device.buffer(64, dtype), y], PUSH)
    bits = device.upload(np.full(64, 3, np.float32).view(np.uint32))
    kernel.run((1,), [bits, y], PUSH)
    assert np.all(y.array() == 3) and not x.array().any()


@pytest.mark.parametrize("alignment", [mmap.PAGESIZE, 2**16])
def test_page_aligned_starts_at_a_page_and_is_zero(alignment):
    for shape in (1, (3, 5), 5000):
        array = page_aligned(shape, np.int16, alignment)
        assert array.ctypes.data % alignment == 0 and not array.any() and array.flags.writeable
        array += 1
        assert np.all(array == 1) and array.dtype == np.int16


def needs_import(device):
    if not device.info.can("host_import"):
        pytest.skip(device.info.why_not("host_import"))


def test_an_imported_array_is_the_buffer(any_device):
    needs_import(any_device)
    array = page_aligned(100)
    y, x = any_device.import_array(array), any_device.upload(np.full(100, 2, np.float32))
    before = any_device.copied_bytes
    array[:] = 5
    any_device.kernel(SAXPY).run((2,), [x, y], struct.pack("<If", 100, 3.0))
    assert np.all(array == 11) and y.array() is array and y.pointer == array.ctypes.data
    assert any_device.copied_bytes == before
    y.free()
    array[:] = 0


def test_memory_beside_a_page_is_refused_with_the_mend(device):
    needs_import(device)
    array = page_aligned(2048)
    with pytest.raises(BufferError, match="starts 4 bytes behind a multiple of") as caught:
        device.import_array(array[1:1025])
    assert "page_aligned" in caught.value.mend and "minImportedHostPointerAlignment" in caught.value.where
    with pytest.raises(BufferError, match="not contiguous"):
        device.import_array(array[::2])
    with pytest.raises(BufferError, match="elements"):
        device.import_array(array.view(bool))


def test_a_device_that_imports_nothing_says_why(device):
    reasons = dict(device.info.absences) | {"host_import": "the driver has no VK_EXT_external_memory_host"}
    with open_device() as other:
        other.info = replace(other.info, absences=tuple(reasons.items()))
        with pytest.raises(BufferError, match="imports no memory: the driver has no"):
            other.import_array(page_aligned(64))


def test_a_read_only_array_is_bound_only_where_nothing_writes(device):
    needs_import(device)
    array = page_aligned(64)
    array[:] = 7
    array.flags.writeable = False
    frozen, y = device.import_array(array), device.buffer(64)
    device.kernel(spirv.compile_glsl(READS)).run((1,), [frozen, y])
    assert np.all(y.array() == 7)
    with pytest.raises(KernelError, match="may write to an imported array that is read-only") as caught:
        device.kernel(SAXPY).run((1,), [y, frozen], PUSH)
    assert caught.value.where == "binding 1"
    with pytest.raises(VulkanError, match="read-only"), device.record() as recording:
        recording.fill(frozen)


def test_a_view_keeps_the_memory_when_its_buffer_is_dropped(device):
    view = device.buffer(10**6).array()
    view[:] = 3
    gc.collect()
    assert view.sum() == 3 * 10**6


def test_dropped_buffers_give_their_memory_back(device):
    children = len(device.children)
    for _ in range(50):
        device.upload(np.ones(10**5, np.float32))
    assert len(device.children) <= children + 1


def test_an_array_outlives_its_device_and_then_takes_it_along():
    if not devices():
        pytest.skip("needs a Vulkan device")
    with open_device() as device:
        buffer = device.buffer(64)
        view, other = buffer.array(), buffer.array()
    view[:] = 3
    assert device.closed and device.handle is not None and other.sum() == 192
    del view
    assert device.handle is not None
    del other
    assert device.handle is None and buffer.handle is None and device.instance.handle is None
    with pytest.raises(BufferError, match="was freed"):
        buffer.array()
    with pytest.raises(VulkanError, match="was closed"):
        device.buffer(4)


def test_a_buffer_of_another_device_is_refused(device):
    with open_device() as other:
        foreign = other.buffer(64)
        with pytest.raises(KernelError, match="lives on another device"):
            device.kernel(SAXPY).run((1,), [device.buffer(64), foreign], PUSH)
