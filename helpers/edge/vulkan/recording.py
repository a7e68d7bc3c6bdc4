"""Recorded command buffers: several dispatches and the barriers between them, submitted again and again."""

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_int32, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from helpers.edge.vulkan import binding as vk
from helpers.edge.vulkan.loader import DeviceLost, Functions, VulkanError, array, make
from helpers.measure import Quantity, measured

if TYPE_CHECKING:
    from helpers.edge.vulkan.buffer import Allocation, Buffer
    from helpers.edge.vulkan.device import Device
    from helpers.edge.vulkan.instance import Message
    from helpers.edge.vulkan.kernel import Kernel

COMPUTE = vk.VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT
TRANSFER = vk.VK_PIPELINE_STAGE_TRANSFER_BIT
WORK = COMPUTE | TRANSFER
HOST = vk.VK_PIPELINE_STAGE_HOST_BIT
TOP = vk.VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT
WRITES = vk.VK_ACCESS_SHADER_WRITE_BIT | vk.VK_ACCESS_TRANSFER_WRITE_BIT
ACCESSES = WRITES | vk.VK_ACCESS_SHADER_READ_BIT | vk.VK_ACCESS_TRANSFER_READ_BIT
# Arguments of the commands of a step, converted once: ctypes takes as long for a number as a driver for the command.
BIND, STAGE = c_int32(vk.VK_PIPELINE_BIND_POINT_COMPUTE), c_uint32(vk.VK_SHADER_STAGE_COMPUTE_BIT)
ZERO, ONE = c_uint32(0), c_uint32(1)
BEGIN = byref(make(vk.VkCommandBufferBeginInfo))
LEAST_TIMESTAMPS = 16
RESULTS_64 = vk.VK_QUERY_RESULT_64_BIT | vk.VK_QUERY_RESULT_WAIT_BIT
STUCK = "a submission did not end in time"


def _barrier(before: int, accesses: int) -> tuple:
    """What `vkCmdPipelineBarrier` takes besides the command buffer to show all writes to `accesses` of a stage."""
    memory = make(vk.VkMemoryBarrier, srcAccessMask=WRITES, dstAccessMask=accesses)
    return c_uint32(WORK), c_uint32(before), ZERO, ONE, byref(memory), ZERO, None, ZERO, None


BETWEEN = _barrier(WORK, ACCESSES)
# Coherent memory still needs this: a fence alone makes nothing visible to the host. The other way,
# a submission makes earlier writes of the host visible by itself (specification, 7.9).
TO_HOST = _barrier(HOST, vk.VK_ACCESS_HOST_READ_BIT)


class RecordingError(VulkanError):
    """A recording that cannot be filled or submitted as it is."""


@dataclass(frozen=True)
class Dispatch:
    """One dispatch that has ended.

    groups: workgroups (x, y, z). local_size: invocations of a workgroup (x, y, z). duration: `s`,
    measured between two timestamps of the device, or None where its queue has no timestamps.
    valid_bits: how many bits of a timestamp count. messages: what the validation layer said.
    """

    groups: tuple[int, int, int]
    local_size: tuple[int, int, int]
    duration: Quantity | None
    valid_bits: int = 0
    messages: tuple["Message", ...] = ()


class Barrier(NamedTuple):
    """A place between two steps of a recording where memory must be made visible.

    after, before: the steps, counted from 0. hazard: `read after write`, `write after write` or
    `write after read`; `asked for` where the program placed it itself.
    """

    after: int
    before: int
    hazard: str


class Step(NamedTuple):
    """One command. kernel: None for a copy or a fill, whose `command` says which."""

    kernel: "Kernel | None"
    groups: tuple[int, int, int]
    push: bytes
    uses: tuple["Allocation", ...]
    command: str = "dispatch"


@dataclass(frozen=True, slots=True)
class Run:
    """One submission of a recording that has ended.

    ticks: the device's clock before the first step and after each, or () without timestamps.
    period_ns: of a tick. valid_bits: of a tick that count; a clock that wraps between two steps is
    taken care of. messages: what the validation layer said meanwhile.
    """

    steps: tuple[Step, ...]
    ticks: tuple[int, ...]
    period_ns: float
    valid_bits: int
    messages: tuple["Message", ...]

    @property
    def dispatches(self) -> tuple[Dispatch, ...]:
        """The dispatches in their order, each timed from the end of the step before it."""
        return tuple(
            Dispatch(
                step.groups, step.kernel.interface.local_size, self._between(i, i + 1), self.valid_bits, self.messages
            )
            for i, step in enumerate(self.steps)
            if step.kernel
        )

    @property
    def duration(self) -> Quantity | None:
        """From before the first step to after the last, `s`, or None without timestamps."""
        return self._between(0, len(self.steps))

    def _between(self, first: int, last: int) -> Quantity | None:
        if not self.ticks:
            return None
        elapsed = (self.ticks[last] - self.ticks[first]) & ((1 << self.valid_bits) - 1)
        return measured(elapsed * self.period_ns * 1e-9, "s")


class Slot:
    """A command buffer, a fence and timestamps, which outlive the recordings that use them in turn."""

    def __init__(self, functions: Functions, device: c_void_p, commands: int):
        self._functions, self._device, self._commands = functions, device, commands
        self.queries, self._room = 0, 0
        allocate = make(
            vk.VkCommandBufferAllocateInfo,
            commandPool=commands,
            level=vk.VK_COMMAND_BUFFER_LEVEL_PRIMARY,
            commandBufferCount=1,
        )
        self._buffers = array(c_void_p, 1)
        functions.vkAllocateCommandBuffers(device, byref(allocate), self._buffers)
        self.command = c_void_p(self._buffers[0])
        fence = c_uint64()
        functions.vkCreateFence(device, byref(make(vk.VkFenceCreateInfo)), None, byref(fence))
        self.fence, self.fences = fence.value, array(c_uint64, [fence.value])
        self._submit_info = make(vk.VkSubmitInfo, commandBufferCount=1, pCommandBuffers=self._buffers)
        self.submit = byref(self._submit_info)

    def reserve(self, count: int) -> None:
        """Room for `count` timestamps."""
        if count <= self._room:
            return
        self._drop_queries()
        self._room = max(LEAST_TIMESTAMPS, count)
        pool = c_uint64()
        create = make(vk.VkQueryPoolCreateInfo, queryType=vk.VK_QUERY_TYPE_TIMESTAMP, queryCount=self._room)
        self._functions.vkCreateQueryPool(self._device, byref(create), None, byref(pool))
        self.queries = pool.value

    def destroy(self) -> None:
        """Destroy the parts."""
        self._drop_queries()
        self._functions.vkDestroyFence(self._device, self.fence, None)
        self._functions.vkFreeCommandBuffers(self._device, self._commands, 1, self._buffers)

    def _drop_queries(self) -> None:
        if self.queries:
            self._functions.vkDestroyQueryPool(self._device, self.queries, None)
        self.queries, self._room = 0, 0


class Recording:
    """Dispatches and copies in an order, with the barriers between them; made by `Device.record`.

    Fill it inside its `with` block, then `submit()` it as often as you like: nothing is allocated
    or checked again. It keeps its kernels and buffers. barriers: those that were placed. hazards:
    the places that need one and have none, because the recording was asked to place none itself.
    messages: what the validation layer said while it was recorded.
    """

    def __init__(self, device: "Device", automatic: bool = True, timestamps: bool = True):
        self.device = device
        self.steps: tuple[Step, ...] = ()
        self.barriers: tuple[Barrier, ...] = ()
        self.hazards: tuple[Barrier, ...] = ()
        self.messages: tuple[Message, ...] = ()
        self._automatic, self._timed = automatic, timestamps and device.timestamp_bits > 0
        self._plan: list[Step] | None = None
        self._slot: Slot | None = None
        self._last = dict.get  # of the steps that used an allocation; imported memory needs more

    def __enter__(self) -> "Recording":
        if self._plan is not None or self.steps:
            raise RecordingError("the recording was filled already", mend="make another with device.record()")
        self._plan = []
        self._placed: list[Barrier] = []
        self._open: list[Barrier] = []
        self._written: dict[Allocation, int] = {}
        self._read: dict[Allocation, int] = {}
        return self

    def __exit__(self, kind, *_) -> None:
        plan, self._plan = self._plan, None
        if kind is not None:
            return
        if not plan:
            raise RecordingError("the recording is empty", mend="dispatch something inside its with block")
        self.steps, self.barriers, self.hazards = tuple(plan), tuple(self._placed), tuple(self._open)
        self._used = set().union(*[step.uses for step in plan])
        device, instance = self.device, self.device.instance
        slot = device.take_slot(len(plan) + 1 if self._timed else 0)
        before, told, instance.call = instance.call, len(instance.messages), "recording"
        try:
            self._encode(device.functions, slot.command, slot.queries)
        finally:
            instance.call = before
        self.messages, self._slot = tuple(instance.messages[told:]), slot
        if self._timed:
            self._prepare_ticks()

    def dispatch(
        self, kernel: "Kernel", groups: Sequence[int], buffers: Sequence["Buffer"], push: bytes = b""
    ) -> None:
        """Add a dispatch; the arguments are those of `Kernel.run`, and are checked here, once."""
        groups = kernel.require_arguments(groups, buffers, push)
        uses = tuple([buffer.allocation for buffer in buffers])
        self._add(Step(kernel, groups, bytes(push), uses), kernel.accesses)

    def copy(self, source: "Buffer", target: "Buffer") -> None:
        """Add a copy of a whole buffer into another of as many bytes."""
        if source.nbytes != target.nbytes or source is target:
            raise RecordingError(
                f"a copy of {source.nbytes} bytes into {target.nbytes}", mend="use two buffers of the same size"
            )
        for buffer in (source, target):
            self._require_here(buffer)
        self._require_writable(target)
        uses = (source.allocation, target.allocation)
        self._add(Step(None, (0, 0, 0), b"", uses, "copy"), ((True, False), (False, True)))

    def fill(self, target: "Buffer") -> None:
        """Add a command that writes zeros into a whole buffer."""
        self._require_here(target)
        self._require_writable(target)
        self._add(Step(None, (0, 0, 0), b"", (target.allocation,), "fill"), ((False, True),))

    def barrier(self) -> None:
        """Make what was written so far visible to all that follows."""
        number = len(self._require_filling())
        if number:
            self._place(Barrier(number - 1, number, "asked for"))

    def submit(self) -> Run:
        """Let the device do all steps, and wait for the end.

        What the host wrote before is visible to the shaders, and what they wrote to the host after.
        Raises `RecordingError` when a buffer was freed, `DeviceLost` when the device gave up or did
        not end within `device.deadline_s`.
        """
        device, slot = self.device, self._slot
        self._require_ready()
        functions, instance = device.functions, device.instance
        before, told = instance.call, len(instance.messages)
        instance.call = "running a recording"
        try:
            functions.vkResetFences(device.handle, 1, slot.fences)
            functions.vkQueueSubmit(device.queue, 1, slot.submit, slot.fence)
            deadline = int(device.deadline_s * 1e9)
            if functions.vkWaitForFences(device.handle, 1, slot.fences, 1, deadline) == vk.VK_TIMEOUT:
                raise DeviceLost(
                    f"{STUCK}: more than {device.deadline_s:g} s",
                    where=device.info.name,
                    mend="look for a loop that never ends, or dispatch less; then open the device again",
                )
            if device.late_messages:
                functions.vkDeviceWaitIdle(device.handle)
            if self._timed:
                functions.vkGetQueryPoolResults(*self._ask_ticks)
        except DeviceLost as error:
            device.give_up(STUCK if error.what.startswith(STUCK) else error.what)
            raise
        finally:
            instance.call = before
        ticks = tuple(self._ticks) if self._timed else ()
        period = device.info.limits.timestamp_period_ns
        return Run(self.steps, ticks, period, device.timestamp_bits, tuple(instance.messages[told:]))

    def submit_once(self) -> Run:
        """Submit it, then give back what it holds."""
        try:
            return self.submit()
        finally:
            self.free()

    def free(self) -> None:
        """Give back what it holds; harmless when done. It cannot be submitted afterwards."""
        if self._slot is not None:
            self.device.give_slot(self._slot)
        self._slot = None

    __del__ = free

    def _add(self, step: Step, accesses: Sequence[tuple[bool, bool]]) -> None:
        plan = self._require_filling()
        number, written, read = len(plan), self._written, self._read
        if hazard := self._hazard(number, step.uses, accesses):
            (self._place if self._automatic else self._open.append)(hazard)
        for use, (reads, writes) in zip(step.uses, accesses):
            if reads:
                read[use] = number
            if writes:
                written[use] = number
        plan.append(step)

    def _place(self, barrier: Barrier) -> None:
        self._placed.append(barrier)
        self._read.clear()
        self._written.clear()

    def _hazard(self, number: int, uses: Sequence["Allocation"], accesses) -> Barrier | None:
        """The first hazard between step `number` and those since the last barrier."""
        for use, (reads, writes) in zip(uses, accesses):
            if use.kept is not None:  # only imported memory can be seen through two buffers
                self._last = _last_overlapping
            earlier = self._last(self._written, use)
            if earlier is not None:
                return Barrier(earlier, number, "read after write" if reads else "write after write")
            if writes and (earlier := self._last(self._read, use)) is not None:
                return Barrier(earlier, number, "write after read")
        return None

    def _encode(self, functions: Functions, command: c_void_p, queries: int) -> None:
        barrier, waiting = functions.vkCmdPipelineBarrier, {place.before for place in self.barriers}
        functions.vkBeginCommandBuffer(command, BEGIN)
        if self._timed:
            functions.vkCmdResetQueryPool(command, queries, 0, len(self.steps) + 1)
            functions.vkCmdWriteTimestamp(command, TOP, queries, 0)
        before = None
        for number, step in enumerate(self.steps):
            if number in waiting:
                barrier(command, *BETWEEN)
            if step.kernel is None:
                self._encode_transfer(functions, command, step)
            else:
                self._encode_dispatch(functions, command, step, before)
                before = step
            if self._timed:
                functions.vkCmdWriteTimestamp(command, COMPUTE if step.kernel else TRANSFER, queries, number + 1)
        barrier(command, *TO_HOST)
        functions.vkEndCommandBuffer(command)

    def _encode_dispatch(self, functions: Functions, command: c_void_p, step: Step, before: Step | None) -> None:
        """Bind what the dispatch before it has not bound already, and dispatch."""
        kernel, push = step.kernel, step.push
        same = before is not None and before.kernel is kernel
        if not same:
            functions.vkCmdBindPipeline(command, BIND, kernel.handle)
        if step.uses and not (same and before.uses == step.uses):
            sets = self.device.descriptors.find(kernel.set_layout, kernel.interface.bindings, step.uses)
            functions.vkCmdBindDescriptorSets(command, BIND, kernel.layout, ZERO, ONE, sets, ZERO, None)
        if push and not (same and before.push == push):
            functions.vkCmdPushConstants(command, kernel.layout, STAGE, ZERO, len(push), push)
        functions.vkCmdDispatch(command, *step.groups)

    def _encode_transfer(self, functions: Functions, command: c_void_p, step: Step) -> None:
        target = step.uses[-1]
        if step.command == "fill":
            functions.vkCmdFillBuffer(command, target.handle, 0, -(-target.nbytes // 4) * 4, 0)
            return
        region = vk.VkBufferCopy(0, 0, target.nbytes)
        functions.vkCmdCopyBuffer(command, step.uses[0].handle, target.handle, 1, byref(region))

    def _prepare_ticks(self) -> None:
        """What each submission needs to read its timestamps, made once."""
        device, count = self.device, len(self.steps) + 1
        self._ticks = array(c_uint64, count)
        place = ctypes.cast(self._ticks, c_void_p)
        self._ask_ticks = (device.handle, self._slot.queries, 0, count, 8 * count, place, 8, RESULTS_64)

    def _require_filling(self) -> list:
        if self._plan is None:
            raise RecordingError("the recording is not being filled", mend="add steps inside its with block")
        return self._plan

    def _require_ready(self) -> None:
        self.device.require_open()
        if self._slot is None:
            raise RecordingError(
                "the recording is empty, broken off or freed", mend="fill another inside `with device.record()`"
            )
        for use in self._used:
            if use.handle is None:
                raise RecordingError(
                    f"a buffer of {use.nbytes} bytes that the recording uses was freed",
                    mend="keep its buffers as long as the recording, or record again",
                )

    def _require_here(self, buffer: "Buffer") -> None:
        if buffer.handle is None or buffer.device is not self.device:
            what = "was freed" if buffer.handle is None else "lives on another device"
            raise RecordingError(f"a buffer of {buffer.nbytes} bytes {what}", mend="make one on this device")

    def _require_writable(self, buffer: "Buffer") -> None:
        if not buffer.writable:
            raise RecordingError("the buffer is an imported array that is read-only", mend="import a writable one")


def _last_overlapping(steps: dict["Allocation", int], use: "Allocation") -> int | None:
    """The step of an allocation that is `use`, or shares memory with it."""
    start, end = use.span
    return next((step for other, step in steps.items() if other.span[0] < end and start < other.span[1]), None)
