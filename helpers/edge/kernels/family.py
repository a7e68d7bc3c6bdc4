"""What the kernel families share: their errors, their checks, and running or recording their dispatches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from helpers.errors import CourseError

if TYPE_CHECKING:
    from helpers.edge.vulkan import Buffer, Device, Kernel, Recording, Run

MOST_GROUPS = 65535  # workgroups in one direction that every Vulkan device takes


class ArgumentError(CourseError):
    """Buffers of a dtype or shape, or a tile, that a kernel cannot take."""


@dataclass(frozen=True)
class Call:
    """One dispatch to come: the arguments of `Kernel.run`."""

    kernel: "Kernel"
    groups: tuple[int, ...]
    buffers: tuple["Buffer", ...]
    push: bytes


class Family:
    """A kernel family on a device. A subclass says in `calls` which dispatches its buffers need."""

    def __init__(self, device: "Device"):
        self.device = device

    def calls(self, *buffers: "Buffer") -> tuple[Call, ...]:
        """The dispatches for these buffers, in order. Raises `ArgumentError` before anything runs."""
        raise NotImplementedError

    def run(self, *buffers: "Buffer") -> "Run":
        """Do it now and wait for the end."""
        calls = self.calls(*buffers)
        with self.device.record() as recording:
            _add(recording, calls)
        return recording.submit_once()

    def record(self, recording: "Recording", *buffers: "Buffer") -> None:
        """Add it to a recording that is being filled."""
        _add(recording, self.calls(*buffers))


def _add(recording: "Recording", calls: Sequence[Call]) -> None:
    for call in calls:
        recording.dispatch(call.kernel, call.groups, call.buffers, call.push)


def require_arrays(dtype, **arrays) -> None:
    """Raise `ArgumentError`, naming the first array that is not of `dtype`."""
    for name, array in arrays.items():
        if np.dtype(array.dtype) != np.dtype(dtype):
            raise ArgumentError(f"{name} is {array.dtype}", mend=f"use {np.dtype(dtype)}")


def require_shape(name: str, array, *shape: int) -> None:
    """Raise `ArgumentError` unless the array has this shape."""
    if tuple(array.shape) != shape:
        raise ArgumentError(f"{name} has the shape {tuple(array.shape)}", mend=f"use {shape}")


def require_axes(name: str, array, axes: int) -> None:
    """Raise `ArgumentError` unless the array has that many axes."""
    if len(array.shape) != axes:
        raise ArgumentError(f"{name} has the shape {tuple(array.shape)}", mend=f"use {axes} axes")


def require_power_of_two(name: str, value: int) -> None:
    """Raise `ArgumentError` for anything else, such as a tile that a tree cannot halve."""
    if value < 1 or value & (value - 1):
        raise ArgumentError(f"{name} is {value}", mend="use a power of two")


def spread(groups: int) -> tuple[int, int]:
    """At least `groups` workgroups as (x, y), for more than one direction may hold."""
    rows = -(-groups // MOST_GROUPS)
    return -(-groups // rows), rows


def subgroup_size(device: "Device") -> int:
    """The least size that the device's subgroups can have: what a kernel may count on."""
    return min(device.info.subgroup_sizes[0], device.info.subgroup_size)
