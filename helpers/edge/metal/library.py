"""`compile_shader` as in torch.mps, on any machine: on a Mac the GPU runs the text, elsewhere the stand-in.

The call is torch's: `library = compile_shader(source)`, then `library.saxpy(x, y, 2.0, threads=n,
group_size=64)`. Arrays are NumPy arrays, changed in place. `threads` counts threads, not threadgroups: the
last threadgroup of a row is smaller when they do not divide.
"""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from helpers.edge.metal import build as building
from helpers.edge.metal import faults
from helpers.edge.metal.arguments import MOST_THREADS, Argument, grid_of, require_fit
from helpers.edge.metal.build import Program
from helpers.edge.metal.errors import ArgumentsError, ShimUnavailable
from helpers.edge.metal.text import KernelText
from helpers.measure import Quantity, simulated

if TYPE_CHECKING:
    from helpers.edge.metal.bridge import MacLibrary

WIDTHS = (4, 8, 16, 32)
PAGE = 4096
GRACE_SECONDS = 5


@dataclass(frozen=True)
class Traffic:
    """What a kernel read and wrote of one buffer or threadgroup variable. nbytes: its size."""

    name: str
    nbytes: int
    reads: int
    writes: int
    read_bytes: Quantity
    written_bytes: Quantity


@dataclass(frozen=True)
class Execution:
    """One call of a kernel, and what executed it.

    executed: in words, `MSL by shim (g++ 12.2.0), never compiled by Apple`. threads, group_size: what was
    dispatched, (x, y, z). groups: threadgroups that ran. simd_width: lanes of a simdgroup. buffers,
    threadgroup: the traffic of each argument and each threadgroup variable, counted as g++ compiled
    the text. barriers, exchanges: threadgroup barriers, and functions across a simdgroup, over all groups.
    duration: of the whole call, on the machine that stands in for the GPU. None and empty on a Mac.
    """

    kernel: str
    executed: str
    threads: tuple[int, int, int]
    group_size: tuple[int, int, int]
    groups: int
    simd_width: int
    buffers: tuple[Traffic, ...] = ()
    threadgroup: tuple[Traffic, ...] = ()
    barriers: int = 0
    exchanges: int = 0
    duration: Quantity | None = None

    @property
    def device_bytes(self) -> Quantity:
        """Bytes read and written in device memory, simulated."""
        total = sum(t.read_bytes.value + t.written_bytes.value for t in self.buffers)
        return simulated(total, "B", self.executed)


def compile_shader(source: str, *, simd_width: int = 32, deadline_s: float = 20.0) -> "Library | MacLibrary":
    """Compile MSL for this machine.

    simd_width, deadline_s: lanes of a simdgroup (4, 8, 16 or 32), and seconds a call may take; of the stand-in
    only. On a Mac with an Apple GPU the text goes through torch.mps.compile_shader; that path cannot
    be verified without a Mac. Raises the errors of `build.build`.
    """
    from helpers.edge.metal import bridge

    if bridge.available():
        return bridge.MacLibrary(source)
    return shim_library(source, simd_width=simd_width, deadline_s=deadline_s)


def shim_library(source: str, *, simd_width: int = 32, deadline_s: float = 20.0) -> "Library":
    """Compile MSL for the stand-in, on a Mac too; see `compile_shader`."""
    if simd_width not in WIDTHS:
        raise ArgumentsError(f"a simdgroup of {simd_width} lanes", mend=f"use one of {WIDTHS}")
    return Library(building.build(source), simd_width, deadline_s)


class Library:
    """A compiled text; its kernels are its attributes."""

    def __init__(self, program: Program, simd_width: int, deadline_s: float):
        self.program, self.simd_width, self.deadline_s = program, simd_width, deadline_s

    def __getattr__(self, name: str) -> "Kernel":
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self.program.kernels:
            there = ", ".join(self.program.kernels)
            raise ArgumentsError(f"the text has no kernel {name}", mend=f"it has {there}")
        return Kernel(self, self.program.kernels[name])

    def __dir__(self) -> list[str]:
        return list(self.program.kernels)


class Kernel:
    """A kernel that the stand-in can call. The limits have torch's names."""

    def __init__(self, library: Library, text: KernelText):
        self.library, self.text = library, text
        self.max_threads_per_threadgroup = MOST_THREADS
        self.thread_execution_width = library.simd_width

    @property
    def executed(self) -> str:
        """What runs the kernel, in words."""
        return f"MSL by shim (g++ {building.compiler()[1]}), never compiled by Apple"

    def __call__(
        self,
        *arguments,
        threads: int | Sequence[int] | None = None,
        group_size: int | Sequence[int] | None = None,
        arg_casts: str | dict[int, str] | None = None,
    ) -> Execution:
        """Run the kernel and wait for its end.

        arguments: one a buffer, in the order of their numbers: C-contiguous NumPy arrays, floats (fp32), ints
        (int64), tuples of them, bytes for a struct. threads: one to three counts; without, the elements
        of the first array. group_size: as many counts as `threads`. arg_casts: as in torch, `"int32"` or
        {argument: "fp16"}. Raises `ArgumentsError` before anything runs, a `KernelFault` by name when
        the kernel does something wrong; the arrays are then unchanged.
        """
        passed = [Argument.of(value, place, arg_casts) for place, value in enumerate(arguments)]
        require_fit(self.text, passed)
        grid, group = grid_of(threads, group_size, passed)
        started = time.perf_counter()
        report = _run(self.library, self.text.name, passed, grid, group)
        if report["fault"]:
            call = faults.Call(report, self.library.program, self.text, passed, self.library.deadline_s)
            raise faults.error_of(call)
        _copy_back(self.text, passed, report["contents"])
        duration = simulated(time.perf_counter() - started, "s", self.executed)
        names = [parameter.name for parameter in self.text.arguments]
        return Execution(
            self.text.name,
            self.executed,
            grid,
            group,
            report["groups"],
            self.library.simd_width,
            tuple(self._traffic(row, name) for row, name in zip(report["buffers"], names)),
            tuple(self._traffic(row, row[0]) for row in report["shared"] if row[1]),
            report["barriers"],
            report["exchanges"],
            duration,
        )

    def _traffic(self, row: list, name: str) -> Traffic:
        _, nbytes, reads, writes, read, written = row
        made = [simulated(count, "B", self.executed) for count in (read, written)]
        return Traffic(name, nbytes, reads, writes, *made)


def _run(library: Library, kernel: str, passed: list[Argument], grid, group) -> dict:
    """One child process on one file that holds the buffers; its report, with the buffers' contents after."""
    number = list(library.program.kernels).index(kernel)
    with tempfile.TemporaryFile() as file:
        rows, places, offset = [], {}, 0
        for argument in passed:
            array = argument.array
            key = (array.ctypes.data, array.nbytes) if argument.from_host else object()
            if key not in places:
                places[key] = offset
                file.seek(offset)
                file.write(array.tobytes())
                offset += -(-max(array.nbytes, 1) // PAGE) * PAGE
            rows.append((places[key], array.nbytes, argument.element))
        file.truncate(max(offset, PAGE))
        file.flush()
        numbers = [file.fileno(), number, *grid, *group, library.simd_width, int(library.deadline_s * 1000)]
        numbers += [number for row in rows for number in row]
        report = _child([str(library.program.path), *map(str, numbers)], file.fileno(), library.deadline_s)
        if not report["fault"]:
            report["contents"] = [os.pread(file.fileno(), size, place) for place, size, _ in rows]
        return report


def _child(command: list[str], handle: int, deadline_s: float) -> dict:
    """Run a program that reports on its standard output; it also watches the deadline itself."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            check=False,
            pass_fds=(handle,),
            timeout=deadline_s + GRACE_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return {"fault": "deadline"}
    except OSError as error:
        mend = f"set {building.CACHE_VARIABLE} to a folder where programs may be started"
        raise ShimUnavailable(f"the compiled kernel cannot be started: {error}", mend=mend) from None
    try:
        return json.loads(done.stdout)
    except ValueError:
        return {"fault": "died", "signal": -done.returncode}


def _copy_back(text: KernelText, passed: list[Argument], contents: list[bytes]) -> None:
    for parameter, argument, content in zip(text.arguments, passed, contents):
        if parameter.writable and argument.from_host:
            argument.array.reshape(-1).view(np.uint8)[...] = np.frombuffer(content, np.uint8)
