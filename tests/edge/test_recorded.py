import random
import struct
from itertools import combinations

import numpy as np
import pytest

from helpers.edge import shaders, spirv
from helpers.edge.vulkan import BufferError, DeviceLost, RecordingError, Run, VulkanError, open_device, page_aligned
from helpers.edge.vulkan import binding as vk

SAXPY = shaders.spirv("saxpy")
PUSH = struct.pack("<If", 64, 1.0)
WRITE_ONLY = """#version 450
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { float y[]; };
void main() { y[gl_GlobalInvocationID.x] = x[gl_GlobalInvocationID.x] + 1.0; }
"""


@pytest.fixture(scope="module")
def moves():
    return spirv.compile_glsl(WRITE_ONLY)


def ones(device, count):
    return [device.upload(np.ones(64, np.float32)) for _ in range(count)]


def test_each_submission_does_all_steps_again(any_device):
    x, y = ones(any_device, 2)
    kernel = any_device.kernel(SAXPY)
    with any_device.record() as recording:
        recording.dispatch(kernel, (1,), [x, y], PUSH)
        recording.dispatch(kernel, (1,), [y, x], PUSH)
    a = b = 1
    for _ in range(5):
        recording.submit()
        b += a
        a += b
        assert np.all(x.array() == a) and np.all(y.array() == b)


def test_what_the_host_writes_between_two_submissions_is_seen(any_device, moves):
    x, y = ones(any_device, 2)
    with any_device.record(timestamps=False) as recording:
        recording.dispatch(any_device.kernel(moves), (1,), [x, y])
    for value in (4, 7):
        x.array()[:] = value
        run = recording.submit()
        assert np.all(y.array() == value + 1)
    assert run.duration is None and run.dispatches[0].duration is None


def test_a_submission_makes_no_vulkan_object(device, monkeypatch):
    x, y = ones(device, 2)
    with device.record() as recording:
        for _ in range(40):
            recording.dispatch(device.kernel(SAXPY), (1,), [x, y], PUSH)

    def refuse(name):
        def call(*_):
            raise AssertionError(f"{name} during a submission")

        return call

    for name in vk.COMMANDS:
        if name.startswith(("vkCreate", "vkAllocate", "vkUpdate", "vkCmd", "vkBegin", "vkMap")):
            monkeypatch.setitem(vars(device.functions), name, refuse(name))
    assert len(recording.submit().dispatches) == 40


def test_a_recording_takes_over_what_an_earlier_one_left(device, monkeypatch):
    x, y = ones(device, 2)
    kernel = device.kernel(SAXPY)
    kernel.run((1,), [x, y], PUSH)

    def refuse(*_):
        raise AssertionError("a new object")

    for name in ("vkCreateFence", "vkAllocateCommandBuffers", "vkAllocateDescriptorSets", "vkCreateQueryPool"):
        monkeypatch.setitem(vars(device.functions), name, refuse)
    kernel.run((1,), [x, y], PUSH)


def accesses(step, order):
    """(reads, writes) of a step over the buffers it names."""
    kind, first, second = order[step]
    return {
        "add": ({first, second}, {second}),
        "move": ({first}, {second}),
        "copy": ({first}, {second}),
        "fill": (set(), {second}),
    }[kind]


def conflict(i, j, order):
    (reads, writes), (later_reads, later_writes) = accesses(i, order), accesses(j, order)
    return bool(writes & later_reads or writes & later_writes or reads & later_writes)


@pytest.mark.parametrize("seed", range(6))
def test_barriers_stand_between_all_steps_that_conflict_and_nowhere_else(device, moves, seed):
    draw = random.Random(seed)
    buffers = ones(device, 4)
    order = [
        (draw.choice(["add", "move", "copy", "fill"]), *draw.sample(range(4), 2)) for _ in range(draw.randint(2, 14))
    ]
    with device.record() as recording:
        for kind, first, second in order:
            pair = [buffers[first], buffers[second]]
            if kind == "add":
                recording.dispatch(device.kernel(SAXPY), (1,), pair, PUSH)
            elif kind == "move":
                recording.dispatch(device.kernel(moves), (1,), pair)
            elif kind == "copy":
                recording.copy(*pair)
            else:
                recording.fill(pair[1])
    placed = [barrier.before for barrier in recording.barriers]

    def open_pairs(places):
        return [
            (i, j)
            for i, j in combinations(range(len(order)), 2)
            if conflict(i, j, order) and not any(i < place <= j for place in places)
        ]

    assert open_pairs(placed) == [] and recording.hazards == ()
    assert all(open_pairs([other for other in placed if other != place]) for place in placed)
    for barrier in recording.barriers:
        assert conflict(barrier.after, barrier.before, order)
    expected = [np.ones(64, np.float32) for _ in range(4)]
    for kind, first, second in order:
        x, y = expected[first], expected[second]
        expected[second] = {"add": x + y, "move": x + 1, "copy": x.copy(), "fill": 0 * y}[kind]
    recording.submit()
    assert all(np.array_equal(buffer.array(), values) for buffer, values in zip(buffers, expected))


def test_the_hazard_is_named(device, moves):
    x, y = ones(device, 2)
    move, add = device.kernel(moves), device.kernel(SAXPY)
    for steps, hazard in [
        ([(move, x, y), (add, y, x)], "read after write"),
        ([(move, x, y), (move, x, y)], "write after write"),
        ([(move, x, y), (move, y, x)], "read after write"),
    ]:
        with device.record(barriers=False) as recording:
            for kernel, first, second in steps:
                recording.dispatch(kernel, (1,), [first, second], PUSH if kernel is add else b"")
        assert [(h.after, h.before, h.hazard) for h in recording.hazards] == [(0, 1, hazard)]
        assert recording.barriers == ()
    with device.record(barriers=False) as recording:
        recording.dispatch(move, (1,), [x, y])
        recording.fill(x)
    assert recording.hazards[0].hazard == "write after read"


def test_a_barrier_of_ones_own_closes_the_hazard(device, moves):
    x, y = ones(device, 2)
    with device.record(barriers=False) as recording:
        recording.barrier()
        recording.dispatch(device.kernel(moves), (1,), [x, y])
        recording.barrier()
        recording.dispatch(device.kernel(moves), (1,), [y, x])
    assert recording.hazards == () and [b.hazard for b in recording.barriers] == ["asked for"]
    recording.submit()
    assert np.all(x.array() == 3)


def test_two_imports_of_the_same_memory_are_seen_as_one(device, moves):
    if not device.info.can("host_import"):
        pytest.skip(device.info.why_not("host_import"))
    memory = page_aligned(2048)
    whole, behind = device.import_array(memory), device.import_array(memory[1024:])
    other = device.buffer(64)
    with device.record() as recording:
        recording.dispatch(device.kernel(moves), (1,), [behind, other])
        recording.fill(whole)
    assert [barrier.hazard for barrier in recording.barriers] == ["write after read"]


def test_each_dispatch_has_its_time_and_the_times_add_up(any_device):
    x, y = any_device.buffer(10**5), any_device.buffer(10**5)
    with any_device.record() as recording:
        for n in (64, 10**5):
            recording.dispatch(any_device.kernel(SAXPY), (-(-n // 64),), [x, y], struct.pack("<If", n, 1.0))
    run = recording.submit()
    if not any_device.timestamp_bits:
        assert run.duration is None
        return
    times = [dispatch.duration.value for dispatch in run.dispatches]
    assert all(time >= 0 for time in times) and sum(times) == pytest.approx(run.duration.value)
    assert run.dispatches[0].valid_bits == any_device.timestamp_bits


@pytest.mark.parametrize("bits", [36, 64])
def test_a_clock_that_wraps_still_measures(device, bits):
    x, y = ones(device, 2)
    with device.record() as recording:
        recording.dispatch(device.kernel(SAXPY), (1,), [x, y], PUSH)
    run = Run(recording.steps, (2**bits - 10, 15), 2.0, bits, ())
    assert run.duration.value == pytest.approx(50e-9) and run.duration.unit == "s"


def test_a_freed_buffer_stops_the_recording(device):
    x, y = ones(device, 2)
    with device.record() as recording:
        recording.dispatch(device.kernel(SAXPY), (1,), [x, y], PUSH)
    x.free()
    with pytest.raises(RecordingError, match="256 bytes that the recording uses was freed"):
        recording.submit()


def test_a_recording_keeps_what_it_uses(device):
    with device.record() as recording:
        recording.dispatch(device.kernel(SAXPY), (1,), ones(device, 2), PUSH)
    for _ in range(2):
        assert len(recording.submit().dispatches) == 1


def test_a_device_closes_under_a_recording_that_lives_on(any_driver):
    with open_device(driver=any_driver) as closing:
        with closing.record() as recording:
            recording.dispatch(closing.kernel(SAXPY), (1,), ones(closing, 2), PUSH)
        recording.submit()
    assert closing.take_messages() == ()
    with pytest.raises(VulkanError, match="was closed"):
        recording.submit()
    recording.free()


def test_a_recording_is_filled_once_and_only_inside_its_block(device):
    x, y = ones(device, 2)
    recording = device.record()
    with pytest.raises(RecordingError, match="not being filled"):
        recording.dispatch(device.kernel(SAXPY), (1,), [x, y], PUSH)
    with pytest.raises(RecordingError, match="empty"), recording:
        pass
    with recording:
        recording.fill(x)
    with pytest.raises(RecordingError, match="filled already"), recording:
        pass
    with pytest.raises(RecordingError, match="not being filled"):
        recording.barrier()
    recording.free()
    recording.free()
    with pytest.raises(RecordingError, match="freed"):
        recording.submit()


def test_an_error_while_filling_passes_through_and_nothing_can_be_submitted(device):
    with pytest.raises(ZeroDivisionError), device.record() as recording:
        recording.fill(device.buffer(4))
        _ = 1 / 0
    with pytest.raises(RecordingError, match="broken off"):
        recording.submit()
    x, y = ones(device, 2)
    with recording:
        recording.dispatch(device.kernel(SAXPY), (1,), [x, y], PUSH)
    recording.submit()
    assert recording.barriers == () and np.all(y.array() == 2)


def test_a_recording_that_the_driver_refused_cannot_be_submitted(device, monkeypatch):
    x, y = ones(device, 2)

    def refuse(*_):
        raise VulkanError("vkEndCommandBuffer returned VK_ERROR_OUT_OF_HOST_MEMORY")

    monkeypatch.setitem(vars(device.functions), "vkEndCommandBuffer", refuse)
    with pytest.raises(VulkanError, match="OUT_OF_HOST"), device.record() as recording:
        recording.dispatch(device.kernel(SAXPY), (1,), [x, y], PUSH)
    monkeypatch.undo()
    with pytest.raises(RecordingError, match="broken off"):
        recording.submit()
    device.kernel(SAXPY).run((1,), [x, y], PUSH)
    assert np.all(y.array() == 2)


def test_copies_that_do_not_fit_are_refused(device):
    x, longer = device.buffer(64), device.buffer(65)
    freed = device.buffer(64)
    freed.free()
    with pytest.raises(RecordingError, match="256 bytes into 260"), device.record() as recording:
        recording.copy(x, longer)
    with pytest.raises((RecordingError, BufferError), match="freed"), device.record() as recording:
        recording.copy(freed, x)


def test_a_lost_device_says_so_and_closes(any_driver):
    lost = open_device(driver=any_driver)
    x, y = ones(lost, 2)
    kernel = lost.kernel(SAXPY)

    def fail(*_):
        raise DeviceLost("vkQueueSubmit returned VK_ERROR_DEVICE_LOST", mend="open it again")

    lost.functions.vkQueueSubmit = fail
    with pytest.raises(DeviceLost, match="DEVICE_LOST"):
        kernel.run((1,), [x, y], PUSH)
    with pytest.raises(DeviceLost, match="gave up earlier"):
        lost.buffer(4)
    lost.close()
    assert lost.handle is None and lost.take_messages() == ()
    with pytest.raises(VulkanError, match="was closed"):
        lost.record()
    with pytest.raises(VulkanError, match="destroyed with its device"):
        kernel.require_arguments((1,), [x, y], PUSH)
