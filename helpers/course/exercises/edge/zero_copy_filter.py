"""The exercise of the zero-copy lab: a blur that leaves the image where it is, and how an answer is examined."""

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from helpers.course.exercise import Exercise, Finding, Symptom
from helpers.edge.vulkan import Buffer, Copies, Device, DeviceLost, Recording, open_device, why_none
from helpers.edge.vulkan.buffer import Allocation

if TYPE_CHECKING:
    import torch

    Blur = Callable[[Device, Buffer, int, int], torch.Tensor]

GUARD = 256
DEADLINE_S = 10.0
ROUNDINGS = 32  # more than nine products and their sums, or two passes, can carry
UNIT_ROUNDOFF = 2.0**-24  # of fp32


@dataclass
class _Seen:
    """What the answer did: the buffers that the host looked into, and how many dispatches were recorded."""

    looked_into: list[Allocation] = field(default_factory=list)
    dispatches: int = 0


@dataclass(frozen=True)
class _Call:
    """One call of the answer. pixels: before it, (rows, columns). memory: the frame after it, guard included."""

    pixels: np.ndarray
    guard: np.ndarray
    memory: np.ndarray
    copies: Copies
    seen: _Seen
    frame: Buffer

    @property
    def size(self) -> str:
        return "{} × {} pixels".format(*self.pixels.shape)


def binomial(pixels: np.ndarray) -> np.ndarray:
    """The 3×3 binomial blur of (rows, columns) pixels in float64, the pixel at the edge counting beyond it."""
    padded = np.pad(pixels.astype(np.float64), 1, mode="edge")
    across = padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]
    return (across[:-2] + 2 * across[1:-1] + across[2:]) / 16


def examine_blur(answer: "Blur", seed: int) -> Finding | None:
    """The first way in which `answer(device, frame, rows, columns)` is not a blur in place without a copy.

    It runs under the validation layer on a device that drops what a shader writes outside of its
    buffers, and with a deadline, so that a shader without an end costs `DEADLINE_S` and not the kernel.
    """
    draw = random.Random(seed)
    tails = [(1, 1), (1, 7), (5, 1), (19, 37), (draw.randint(2, 70), draw.randint(2, 70))]
    with open_device() as device:
        device.deadline_s = DEADLINE_S
        for shape in [(32, 32), (32, 64), (64, 32), *tails]:
            try:
                finding = _examine_shape(answer, device, shape, draw.randrange(2**32))
            except DeviceLost:
                saw = f"{shape[0]} × {shape[1]} pixels: the device was not done after {DEADLINE_S:g} s"
                return Finding("Every invocation comes to an end.", saw, Symptom.HANGS, 2)
            if finding:
                return finding
    return None


def _examine_shape(answer: "Blur", device: Device, shape: tuple[int, int], seed: int) -> Finding | None:
    rows, columns = shape
    numbers = np.random.default_rng(seed).uniform(0.1, 1.0, rows * columns + GUARD).astype(np.float32)
    frame = device.buffer(numbers.size)
    frame.array()[:] = numbers
    before = device.copies
    with _watching() as seen:
        result = answer(device, frame, rows, columns)
    after = device.copies
    copies = Copies(after.count - before.count, 0, after.staged - before.staged)
    if frame.handle is None:
        return Finding("The frame stays.", "the buffer of the frame was freed", Symptom.NOT_FREED, 1)
    pixels, guard = numbers[: rows * columns].reshape(shape), numbers[rows * columns :]
    call = _Call(pixels, guard, frame.array().copy(), copies, seen, frame)
    return (
        _examine_kind(call, result)
        or _examine_guard(call)
        or _examine_values(call, result.detach().numpy())
        or _examine_place(call, result)
        or _examine_messages(device)
    )


@contextlib.contextmanager
def _watching() -> Iterator[_Seen]:
    """See which mapped memory is looked at and what is dispatched, while the answer runs."""
    seen, view, dispatch = _Seen(), Allocation.view, Recording.dispatch

    def seen_view(allocation):
        seen.looked_into.append(allocation)
        return view(allocation)

    def seen_dispatch(recording, *arguments, **named):
        seen.dispatches += 1
        return dispatch(recording, *arguments, **named)

    Allocation.view, Recording.dispatch = seen_view, seen_dispatch
    try:
        yield seen
    finally:
        Allocation.view, Recording.dispatch = view, dispatch


def _examine_kind(call: _Call, result) -> Finding | None:
    import torch

    if not isinstance(result, torch.Tensor):
        saw = f"{call.size}: a {type(result).__name__} came back"
        return Finding("The result is a torch tensor.", saw, Symptom.TYPE, 1)
    if result.dtype != torch.float32:
        return Finding("The result is fp32, as the frame is.", f"it is {result.dtype}", Symptom.DTYPE, 4)
    if result.device.type != "cpu":
        return Finding("The tensor is a view of mapped memory.", f"it is on {result.device}", Symptom.DEVICE, 1)
    if tuple(result.shape) != call.pixels.shape:
        saw = f"{call.size}: the tensor has shape {tuple(result.shape)}"
        return Finding("The tensor has shape (rows, columns).", saw, Symptom.SHAPE, 1)
    return None


def _examine_guard(call: _Call) -> Finding | None:
    behind = np.flatnonzero(call.memory[call.pixels.size :] != call.guard)
    if not behind.size:
        return None
    saw = f"{call.size}: element {call.pixels.size + behind[0]} of the frame changed, {behind.size} in all"
    return Finding("Nothing behind the last pixel is written.", saw, Symptom.OUT_OF_BOUNDS, 3)


def _examine_values(call: _Call, got: np.ndarray) -> Finding | None:
    if not np.isfinite(got).all():
        saw = f"{call.size}: the result has NaN or infinity"
        return Finding("Finite pixels give finite pixels.", saw, Symptom.NAN, 2)
    truth = binomial(call.pixels)
    wrong = np.argwhere(np.abs(got - truth) > ROUNDINGS * UNIT_ROUNDOFF * truth)
    if not len(wrong):
        return None
    saw = (
        f"{call.size}: {len(wrong)} of {truth.size} are wrong, the first at {tuple(map(int, wrong[0]))}; "
        f"largest error {np.max(np.abs(got - truth)):.2g}"
    )
    rows, columns = truth.shape
    if min(rows, columns) < 32 or rows % 32 or columns % 32:  # whole workgroups were right: they came first
        return Finding("Sizes that do not divide the workgroup are right too.", saw, Symptom.TAIL, 3)
    if np.ptp(got / truth) < 1e-4:
        return Finding("The nine weights sum to one.", saw, Symptom.CONSTANT_FACTOR, 2)
    inside = (wrong > 0).all(axis=1) & (wrong < (rows - 1, columns - 1)).all(axis=1)
    if not inside.any():
        return Finding("Beyond the edge, the pixel at the edge counts.", saw, Symptom.VALUE, 2)
    return Finding("Each pixel is blurred from its neighbours as they were.", saw, Symptom.VALUE, 2)


def _examine_place(call: _Call, result: "torch.Tensor") -> Finding | None:
    if result.data_ptr() != call.frame.pointer or not result.is_contiguous():
        saw = f"{call.size}: the tensor starts at {result.data_ptr():#x}, the frame at {call.frame.pointer:#x}"
        return Finding("The tensor is the frame's memory.", saw, Symptom.TRAFFIC, 4)
    if call.copies.count or call.copies.staged:
        saw = f"{call.size}: {call.copies.count} copies by the host and {call.copies.staged} through staging"
        return Finding("No buffer is copied.", saw, Symptom.TRAFFIC, 4)
    if not call.seen.dispatches:
        return Finding("The device blurs.", f"{call.size}: no shader was dispatched", Symptom.DEVICE, 1)
    others = [each for each in call.seen.looked_into if each is not call.frame.allocation]
    if others:
        saw = f"{call.size}: an array or tensor was made of another buffer, of {others[0].nbytes} bytes"
        return Finding("The host looks into the frame only, and moves no pixel.", saw, Symptom.TRAFFIC, 4)
    return None


def _examine_messages(device: Device) -> Finding | None:
    messages = device.take_messages()
    if not messages:
        return None
    return Finding("The validation layer is silent.", str(messages[0]), Symptom.INVALID_USE, 1)


EXERCISES = (
    Exercise(
        id="edge.2",
        title="An image filter without a copy",
        hints=(
            "Compile the text with spirv.compile_cached, make the kernel with device.kernel, dispatch it with "
            "kernel.run(groups, [from, to], push). Return a view: the first pixels of frame.tensor(), "
            "with .view(rows, columns).",
            "1 2 1 over 4 along the rows, then 1 2 1 over 4 along the columns: the same shader twice. An invocation "
            "must not read what another may have overwritten, so the first pass writes to a scratch buffer. Clamp "
            "the row and the column of a neighbour with min and max, in signed integers.",
            "Start as many workgroups as cover the columns and the rows, rounded up in each direction. An invocation "
            "whose row or column does not exist returns before it writes.",
            "The second pass writes into the frame itself. Then there is nothing to read back: no read(), write(), "
            "upload() or clone(), and the host looks into no other buffer.",
        ),
        examine=examine_blur,
        unavailable=lambda: why_none() or None,
    ),
)
