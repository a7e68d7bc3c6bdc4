"""Zero-copy as a proof: the pointers, writes seen both ways, page alignment, and a count of copies.

"Unified memory" says that the CPU and the GPU could share memory, not that a program does. Each
way of handing an array to a device is tried here and its claims are checked one by one.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from helpers.edge import shaders

if TYPE_CHECKING:
    import torch

    from helpers.edge.vulkan import Buffer, Device

ELEMENTS = 1024
PAGE_BYTES = 4096


@dataclass(frozen=True)
class Proof:
    """What one way of handing an array to a device turned out to be.

    way: `alias`, `import`, `upload` or `mps`. same_pointer: the host's address is the device's
    memory. device_sees_host, host_sees_device: a write of one side reached the other with no copy
    asked for. page_aligned: the memory starts at a page. copied_bytes: by the host and through
    staging, from handing over to reading the result. reason: why it could not be tried, or "".
    """

    way: str
    same_pointer: bool = False
    device_sees_host: bool = False
    host_sees_device: bool = False
    page_aligned: bool = False
    copied_bytes: int = 0
    reason: str = ""

    @property
    def zero_copy(self) -> bool:
        """Whether nothing was copied and each side sees the other's writes."""
        return self.same_pointer and self.device_sees_host and self.host_sees_device and not self.copied_bytes


def prove(device: "Device") -> tuple[Proof, ...]:
    """All ways on this device: alias, import, and upload as the one that is not zero-copy."""
    return prove_alias(device), prove_import(device), prove_upload(device)


def prove_alias(device: "Device") -> Proof:
    """The device allocates; torch and NumPy look at the buffer's mapped memory."""
    return _prove("alias", device, lambda: _aliased(device))


def prove_import(device: "Device") -> Proof:
    """The host allocates; the device takes its pages. `reason` says why where it cannot."""
    if reason := device.info.why_not("host_import"):
        return Proof("import", reason=reason)
    return _prove("import", device, lambda: _imported(device))


def prove_upload(device: "Device") -> Proof:
    """The counter-example on the same device: an array that is copied into a buffer."""
    return _prove("upload", device, lambda: _uploaded(device))


def prove_mps() -> Proof:
    """The counter-example of torch: `.to("mps")` copies although the memory is shared (pytorch issue 140787).

    The bytes copied are those of the tensor, twice when it is brought back to be read.
    """
    import torch

    if not torch.backends.mps.is_available():
        return Proof("mps", reason="torch has no MPS device here: it needs a Mac with Apple silicon")
    ours = torch.arange(float(ELEMENTS))
    theirs = ours.to("mps")
    ours[0] = -1.0
    sees_host = bool(theirs[0].cpu() == -1.0)
    theirs.add_(1.0)
    torch.mps.synchronize()
    sees_device = bool(ours[1] == 2.0)
    same = ours.data_ptr() == theirs.data_ptr()
    return Proof("mps", same, sees_host, sees_device, ours.data_ptr() % PAGE_BYTES == 0, 2 * ours.nbytes)


def addresses(array: np.ndarray, tensor: "torch.Tensor", buffer: "Buffer") -> tuple[int, int, int]:
    """The first byte of the same memory by NumPy, by torch and by Vulkan's mapping: equal when aliased."""
    return array.ctypes.data, tensor.data_ptr(), buffer.pointer


def _aliased(device: "Device") -> tuple[np.ndarray, "Buffer"]:
    buffer = device.buffer(ELEMENTS)
    return buffer.array(), buffer


def _imported(device: "Device") -> tuple[np.ndarray, "Buffer"]:
    from helpers.edge.vulkan import page_aligned

    array = page_aligned(ELEMENTS, alignment=max(PAGE_BYTES, device.info.limits.import_alignment))
    return array, device.import_array(array)


def _uploaded(device: "Device") -> tuple[np.ndarray, "Buffer"]:
    array = np.zeros(ELEMENTS, np.float32)
    return array, device.upload(array)


def _prove(way: str, device: "Device", hand_over: Callable[[], tuple[np.ndarray, "Buffer"]]) -> Proof:
    """y = 1·x + y with `y` handed over: the host writes 3, the shader adds x = 2, the host must see 5."""
    import torch

    before = device.copies
    array, buffer = hand_over()
    tensor = torch.from_numpy(array)
    x = device.buffer(ELEMENTS)
    x.array()[:] = 2.0
    tensor.fill_(3.0)
    device.kernel(shaders.spirv("saxpy")).run((ELEMENTS // 64,), [x, buffer], struct.pack("<If", ELEMENTS, 1.0))
    result = buffer.array()
    after = device.copies
    return Proof(
        way,
        same_pointer=len(set(addresses(array, tensor, buffer))) == 1,
        device_sees_host=bool((result == 5.0).all()),
        host_sees_device=bool((tensor != 3.0).all()),
        page_aligned=buffer.pointer % PAGE_BYTES == 0,
        copied_bytes=after.nbytes + after.staged_nbytes - before.nbytes - before.staged_nbytes,
    )
