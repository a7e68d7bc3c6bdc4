"""What TorchInductor would emit for a Mac: Metal kernels, made on any machine, and run by the stand-in.

A torch wheel for Linux holds the code generator for MPS, and fake tensors on that device need none. One
function of torch's is replaced, the one that asks for the number of GPU cores. All of this is private to
torch, so it happens in a child process, and where it fails a recorded dump takes its place, with its date.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from helpers.edge.metal.errors import MetalError
from helpers.edge.metal.library import Execution, shim_library

RECORDING = Path(__file__).parent / "inductor.json"
SECONDS = 120
# The programs that can be asked for: a function of x (rows, columns) fp32, as Python text.
PROGRAMS = {
    "softmax": "torch.softmax(x, -1)",
    "rmsnorm": "x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)",
    "sum": "x.sum(-1)",
    "gelu": "torch.nn.functional.gelu(x)",
}
HEADER = re.compile(r'\s*#\s*include\s*[<"](c10/metal/[^>"]+)[>"]')


class InductorError(MetalError):
    """A program that is not one of `PROGRAMS`, or a dump that cannot be read."""


@dataclass(frozen=True)
class Emitted:
    """One kernel that Inductor wrote. msl: with its includes. threads, group_size: as the generated call says."""

    name: str
    msl: str
    arguments: tuple[str, ...]
    threads: tuple[int, ...]
    group_size: tuple[int, ...]


@dataclass(frozen=True)
class Emission:
    """What Inductor wrote for a program.

    source: `generated here by torch 2.13.0`, or `recorded: torch 2.13.0, 2026-12-01`. reason: why it was not
    generated here; "" when it was. wrapper: the Python that Inductor wrote around the kernels.
    """

    program: str
    shape: tuple[int, int]
    kernels: tuple[Emitted, ...]
    wrapper: str
    source: str
    reason: str = ""


def emit(program: str, rows: int = 32, columns: int = 100) -> Emission:
    """The Metal kernels of a program over x (rows, columns).

    The recorded dump has the default shape only. Raises `InductorError` for an unknown program, or when
    nothing can be generated and nothing of that shape is recorded.
    """
    if program not in PROGRAMS:
        raise InductorError(f"there is no program {program!r}", mend=f"use one of {', '.join(PROGRAMS)}")
    try:
        return _read(_generate(program, rows, columns), "generated here by torch {torch}")
    except InductorError as error:
        return _recorded(program, (rows, columns), error.what)


def run(emission: Emission, x: np.ndarray, shape: tuple[int, ...]) -> tuple[np.ndarray, Execution]:
    """Run an emission of one kernel on the stand-in: its result, of `shape`, and the execution.

    x: fp32 of the emission's shape. Raises `InductorError` for a program of several kernels.
    """
    if len(emission.kernels) != 1 or len(emission.kernels[0].arguments) != 2:
        raise InductorError(f"{emission.program} is not one kernel of x", mend="run its kernels one by one")
    kernel = emission.kernels[0]
    memory, result = _allocate(emission.wrapper, kernel.arguments[0], shape)
    library = shim_library(embed(kernel.msl))
    done = getattr(library, kernel.name)(memory, x, threads=kernel.threads, group_size=kernel.group_size or None)
    return result.copy(), done


def _allocate(wrapper: str, name: str, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """A result's memory as the wrapper asks for it, and the view of `shape` in it: rows may be padded."""
    found = re.search(rf"\b{name} = empty_strided\(\([^)]*\), \(([^)]*)\)", wrapper)
    strides = [int(stride) for stride in re.findall(r"\d+", found[1])] if found else []
    if len(strides) != len(shape):
        raise InductorError(f"the result of {name} has other axes than {shape}", mend="pass the shape it has")
    memory = np.zeros(1 + sum((size - 1) * stride for size, stride in zip(shape, strides)), np.float32)
    return memory, np.lib.stride_tricks.as_strided(memory, shape, [4 * stride for stride in strides])


def embed(msl: str) -> str:
    """The text with torch's own Metal headers in it, each once, as torch.mps.compile_shader does it."""
    return _embed(msl, torch_headers(), set())


@cache
def torch_headers() -> Path:
    """The folder of torch's headers, without importing torch."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        raise InductorError("torch is not installed", mend="pip install torch")
    return Path(found.origin).parent / "include"


def record(date: str) -> None:
    """Write the recorded dump anew. date: of today, ISO. For a maintainer, after torch was upgraded."""
    made = [_generate(program, 32, 100) | {"date": date} for program in PROGRAMS]
    draft = RECORDING.with_suffix(".draft")
    draft.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    os.replace(draft, RECORDING)


def _embed(text: str, folder: Path, seen: set[str]) -> str:
    lines = []
    for line in text.splitlines():
        header = HEADER.match(line)
        if header is None:
            lines.append("" if line.startswith("#pragma once") else line)
        elif header[1] in seen:
            lines.append("")
        else:
            seen.add(header[1])
            lines.append(_embed((folder / header[1]).read_text(encoding="utf-8"), folder, seen))
    return "\n".join(lines)


def _generate(program: str, rows: int, columns: int) -> dict:
    command = [sys.executable, "-m", "helpers.edge.metal.inductor_child", PROGRAMS[program], str(rows), str(columns)]
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": folder}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=SECONDS, env=environment
            )
        except subprocess.TimeoutExpired:
            raise InductorError(f"Inductor did not end within {SECONDS} s", mend="see the recorded dump") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise InductorError(f"Inductor failed: {last}", mend="see the recorded dump")
    try:
        made = json.loads(done.stdout)
    except ValueError:
        raise InductorError("Inductor printed no dump", mend="see the recorded dump") from None
    return made | {"program": program, "shape": [rows, columns]}


def _read(made: dict, source: str, reason: str = "") -> Emission:
    wrapper = made["wrapper"]
    kernels = []
    for name, msl, headers in re.findall(
        r"async_compile\.metal\('(\w+)', '''(.*?)''', \[(.*?)\]\)", wrapper, re.DOTALL
    ):
        calls = re.findall(rf"^\s+{name}\((.*)\)$", wrapper, re.MULTILINE)
        if not calls:
            raise InductorError(f"the wrapper never calls {name}", mend="see the recorded dump")
        arguments, counts = _split_call(calls[0])
        includes = "".join(f"#include <c10/metal/{header}.h>\n" for header in re.findall(r"\w+", headers))
        kernels.append(Emitted(name, includes + msl.strip("\n") + "\n", arguments, **counts))
    if not kernels:
        raise InductorError("Inductor wrote no Metal kernel", mend="see the recorded dump")
    return Emission(made["program"], tuple(made["shape"]), tuple(kernels), wrapper, source.format(**made), reason)


def _split_call(call: str) -> tuple[tuple[str, ...], dict[str, tuple[int, ...]]]:
    """The buffers of a generated call, and its counts."""
    counts = {}
    for key in ("threads", "group_size"):
        found = re.search(rf"{key}=\[([^\]]*)\]", call)
        counts[key] = tuple(int(count) for count in found[1].split(",")) if found else ()
    plain = re.split(r",?\s*(?:threads|group_size|error_buf_idx)=", call)[0]
    return tuple(part.strip() for part in plain.split(",") if part.strip()), counts


def _recorded(program: str, shape: tuple[int, int], reason: str) -> Emission:
    try:
        dumps = json.loads(RECORDING.read_text(encoding="utf-8"))
        found = [dump for dump in dumps if dump["program"] == program and tuple(dump["shape"]) == shape]
        if found:
            return _read(found[0], "recorded: torch {torch}, {date}", reason)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InductorError(f"the recorded dump cannot be read: {error}", where=str(RECORDING)) from None
    raise InductorError(f"{reason}; no dump of {program} {shape} is recorded", mend="use the default shape")
