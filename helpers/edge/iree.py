"""IREE: a program of tensors compiled to SPIR-V by a compiler that chooses the kernels, where it is installed.

A program is MLIR: what is computed, without workgroups, tiles or memory. It runs by IREE's own program in a
child, on the driver that it is given, because IREE's Python runtime cannot read a result back from Vulkan: it
imports a host pointer that is not page-aligned. Or its SPIR-V is dispatched as any other module.
"""

import os
import re
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

import numpy as np

from helpers.edge.vulkan import Driver, NoVulkan
from helpers.errors import CourseError

PACKAGES = ("iree-base-compiler", "iree-base-runtime")
INSTALL = "pip install iree-base-compiler==3.13.0 iree-base-runtime==3.13.0"
TARGET, RUNNER = "vulkan-spirv", "iree-run-module"
SECONDS = 120
MEND = "check the function's name, the shapes and dtypes of the arrays, and that the driver has a device"
MATMUL = """\
func.func @matmul(%a: tensor<{m}x{k}xf32>, %b: tensor<{k}x{n}xf32>) -> tensor<{m}x{n}xf32> {{
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<{m}x{n}xf32>
  %filled = linalg.fill ins(%zero : f32) outs(%empty : tensor<{m}x{n}xf32>) -> tensor<{m}x{n}xf32>
  %c = linalg.matmul ins(%a, %b : tensor<{m}x{k}xf32>, tensor<{k}x{n}xf32>)
                     outs(%filled : tensor<{m}x{n}xf32>) -> tensor<{m}x{n}xf32>
  return %c : tensor<{m}x{n}xf32>
}}
"""
SOFTMAX = """\
func.func @softmax(%x: tensor<{rows}x{columns}xf32>) -> tensor<{rows}x{columns}xf32> {{
  %empty = tensor.empty() : tensor<{rows}x{columns}xf32>
  %y = linalg.softmax dimension(1) ins(%x : tensor<{rows}x{columns}xf32>)
                                   outs(%empty : tensor<{rows}x{columns}xf32>) -> tensor<{rows}x{columns}xf32>
  return %y : tensor<{rows}x{columns}xf32>
}}
"""
# In the compiler's text: a group of kernels, and a kernel with the body that says how many workgroups it wants.
EXECUTABLE = re.compile(r"^\s*hal\.executable private @(\w+)", re.MULTILINE)
EXPORT = re.compile(r"hal\.executable\.export public @(\w+) (.*?)hal\.return (%\w+), (%\w+), (%\w+)", re.DOTALL)
CONSTANT = re.compile(r"(%\w+) = arith\.constant (\d+) : index")
COMPLAINT = re.compile(r"<stdin>:(\d+):\d+: error: (.*)")


class IreeError(CourseError):
    """Anything that goes wrong in `helpers.edge.iree`."""


class IreeUnavailable(IreeError):
    """IREE is not installed; `mend` is the line that installs it."""


class ProgramError(IreeError):
    """MLIR that IREE does not compile; `where` names the line."""


class RunError(IreeError):
    """A compiled program that IREE could not run on the driver."""


@dataclass(frozen=True)
class CompiledDispatch:
    """A kernel of a program. groups: workgroups (x, y, z); None when they are known at run time only.

    spirv: the module. The only kernel of a program takes its arguments' buffers, and then those of its results.
    """

    name: str
    groups: tuple[int, int, int] | None
    spirv: bytes


@dataclass(frozen=True)
class Program:
    """A compiled program. module: for IREE's runtime, a .vmfb file. dispatches: its kernels, in their order."""

    mlir: str
    module: bytes
    dispatches: tuple[CompiledDispatch, ...]


@cache
def why_not() -> str:
    """Why nothing can be compiled or run here, in one line; "" when it can."""
    for package in PACKAGES:
        try:
            metadata.version(package)
        except metadata.PackageNotFoundError:
            return f"{package} is not installed: {INSTALL}"
    return ""


def version() -> str:
    """`IREE 3.13.0`."""
    _require()
    return f"IREE {metadata.version(PACKAGES[0])}"


def tool(name: str) -> Path:
    """One of IREE's own programs, of this environment. Raises `IreeUnavailable`."""
    _require()
    path = Path(sysconfig.get_path("scripts"), name)
    if not path.is_file():
        raise IreeUnavailable(f"there is no {name}", where=str(path.parent), mend=INSTALL)
    return path


def matmul(m: int, k: int, n: int) -> str:
    """MLIR of a product: function `matmul`, A (m, k) · B (k, n), fp32."""
    return MATMUL.format(m=m, k=k, n=n)


def softmax(rows: int, columns: int) -> str:
    """MLIR of a softmax of each row: function `softmax`, X (rows, columns), fp32."""
    return SOFTMAX.format(rows=rows, columns=columns)


def compile_program(mlir: str) -> Program:
    """Compile for Vulkan's portable baseline. Raises `ProgramError` with the line, or `IreeUnavailable`."""
    _require()
    from iree import compiler

    with tempfile.TemporaryDirectory() as folder:
        options = [f"--iree-hal-dump-executable-binaries-to={folder}", f"--dump-compilation-phases-to={folder}"]
        try:
            module = compiler.compile_str(mlir, target_backends=[TARGET], extra_args=options)
        except compiler.CompilerToolError as error:
            raise _complaint(str(error), mlir) from None
        return Program(mlir, module, tuple(_dispatches(Path(folder))))


def run(
    program: Program, function: str, *arrays: np.ndarray, driver: Driver | None = None, results: int = 1
) -> tuple[np.ndarray, ...]:
    """Run a function of a program by IREE's own program, in a child on `driver`, or on the loader's first.

    results: how many arrays it returns. Raises `RunError`, and `NoVulkan` for a driver that is not here.
    """
    environment = os.environ | _environment(driver)
    with tempfile.TemporaryDirectory() as folder:
        module = Path(folder, "program.vmfb")
        module.write_bytes(program.module)
        command = [tool(RUNNER), f"--module={module}", "--device=vulkan", f"--function={function}"]
        for place, array in enumerate(arrays):
            np.save(Path(folder, f"in{place}.npy"), np.ascontiguousarray(array))
            command.append(f"--input=@{folder}/in{place}.npy")
        command += [f"--output=@{folder}/out{place}.npy" for place in range(results)]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            raise RunError(f"IREE did not end within {SECONDS} s", mend="run a smaller program") from None
        if done.returncode:
            raise RunError(f"IREE said: {_first_line(done.stderr)}", where=f"function {function}", mend=MEND)
        return tuple(np.load(Path(folder, f"out{place}.npy")) for place in range(results))


def _environment(driver: Driver | None) -> dict[str, str]:
    if driver is None:
        return {}
    if driver.why_not:
        raise NoVulkan(f"the driver {driver.name} cannot be loaded", mend=driver.why_not)
    if not driver.in_process:
        raise RunError(
            f"the driver {driver.name} needs a newer C library than IREE's program is started with",
            mend="dispatch the program's SPIR-V with helpers.edge.vulkan in driver.run(program)",
        )
    return driver.environment


def _require() -> None:
    if reason := why_not():
        what, _, mend = reason.partition(": ")
        raise IreeUnavailable(what, mend=mend)


def _dispatches(folder: Path) -> Iterator[CompiledDispatch]:
    """The kernels that the compiler wrote down after it had made SPIR-V of them."""
    (phase,) = folder.glob("*executable-targets.mlir")
    _, *parts = EXECUTABLE.split(phase.read_text(encoding="utf-8"))
    for executable, text in zip(parts[::2], parts[1::2]):
        for name, body, *counts in EXPORT.findall(text):
            known = {key: int(value) for key, value in CONSTANT.findall(body)}
            groups = tuple(known[count] for count in counts) if known.keys() >= set(counts) else None
            (module,) = folder.glob(f"*_{executable}_{name}.spv")
            yield CompiledDispatch(name, groups, module.read_bytes())


def _complaint(said: str, mlir: str) -> ProgramError:
    found = COMPLAINT.search(said)
    if found is None:
        return ProgramError(f"IREE said: {_first_line(said)}", mend="correct the program")
    lines, number = mlir.splitlines(), int(found[1])
    where = f"line {number}: {lines[number - 1].strip()}" if 0 < number <= len(lines) else "the whole program"
    return ProgramError(found[2].strip(), where=where, mend="correct it")


def _first_line(said: str) -> str:
    """The first line that names an error, or the first at all."""
    lines = said.strip().splitlines() or ["nothing"]
    return next((line for line in lines if re.search(r"error|INVALID|NOT_FOUND|UNAVAILABLE", line)), lines[0])
