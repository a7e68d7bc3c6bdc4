"""The course's kernels in MSL, called with what their SPIR-V twins are called with.

A twin has the name of its GLSL source. Its buffers come first, in the order of the bindings, then the
members of the push-constant block as scalars. What GLSL leaves to specialization constants is a macro of
the same name here: torch.mps.compile_shader compiles text and cannot set Metal's function constants,
and those cannot size an array anyway.
"""

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from helpers.edge import shaders
from helpers.edge.metal.errors import ArgumentsError
from helpers.edge.metal.library import Execution, compile_shader, shim_library

CONSTANT = re.compile(r"layout\s*\(\s*constant_id\s*=\s*(\d+)\s*\)\s*const\s+\w+\s+(\w+)\s*=\s*(\w+)\s*;")
BINDING = re.compile(
    r"layout\s*\([^)]*\bbinding\s*=\s*(\d+)[^)]*\)\s*([\w\s]*?)\bbuffer\s+\w+\s*\{\s*(\w+)\s+(\w+)\[\]"
)
PUSH = re.compile(r"layout\s*\(\s*push_constant[^)]*\)\s*uniform\s+\w+\s*\{([^}]*)\}")
MEMBER = re.compile(r"(\w+)\s+(\w+)\s*;")
PACKED = {"uint": "I", "int": "i", "float": "f"}


@dataclass(frozen=True)
class Signature:
    """What a GLSL kernel takes.

    constants: specialization constants, id to name. sizes: the ids that size the workgroup. buffers:
    (name, read only) in order of their bindings. push: (type, name) of each member of the block.
    """

    constants: dict[int, str]
    sizes: frozenset[int]
    buffers: tuple[tuple[str, bool], ...]
    push: tuple[tuple[str, str], ...]


def names() -> tuple[str, ...]:
    """The kernels that have an MSL twin, sorted."""
    return tuple(sorted(path.stem for path in shaders.FOLDER.glob("*.metal")))


@cache
def signature(name: str) -> Signature:
    """What the GLSL twin of a kernel takes, read from its source."""
    glsl = shaders.glsl(name)
    constants = {int(number): constant for number, constant, _ in CONSTANT.findall(glsl)}
    buffers = sorted((int(number), member, "readonly" in how) for number, how, _, member in BINDING.findall(glsl))
    block = PUSH.search(glsl)
    push = tuple(MEMBER.findall(block[1])) if block else ()
    sizes = frozenset(map(int, re.findall(r"local_size_[xyz]_id\s*=\s*(\d+)", glsl)))
    return Signature(constants, sizes, tuple((member, read) for _, member, read in buffers), push)


def msl(name: str, constants: dict[int, int] | None = None) -> str:
    """The MSL of a kernel. constants: values of the specialization constants, by id; the others keep their defaults.

    Raises `ArgumentsError` for a kernel without a twin, or a macro that its text does not define.
    """
    if name not in names():
        raise ArgumentsError(f"{name} has no MSL twin", mend=f"there are {', '.join(names())}")
    text = (shaders.FOLDER / f"{name}.metal").read_text(encoding="utf-8")
    takes = signature(name)
    for number, value in (constants or {}).items():
        macro = takes.constants.get(number, "")
        text, found = re.subn(rf"(?m)^(#define {macro}) \d+", rf"\1 {value}", text) if macro else (text, 0)
        # What only sizes the workgroup needs no macro: the call says the size.
        if not found and number not in takes.sizes:
            raise ArgumentsError(
                f"the MSL of {name} has no macro for constant {number} {macro}".rstrip(),
                mend=f"use the constants {takes.constants}",
            )
    return text


def call(
    name: str,
    groups: Sequence[int],
    local_size: Sequence[int],
    arrays: Sequence[np.ndarray],
    push: bytes = b"",
    constants: dict[int, int] | None = None,
    *,
    simd_width: int = 32,
    shim: bool = False,
) -> Execution:
    """Run a twin with the arguments of its SPIR-V twin's dispatch.

    groups, local_size: threadgroups and threads of each, one to three counts. arrays: one a binding,
    changed in place. push: the packed block. shim: use the stand-in on a Mac too.
    """
    block = signature(name).push
    layout = "<" + "".join(PACKED[kind] for kind, _ in block)
    if len(push) != struct.calcsize(layout):
        raise ArgumentsError(
            f"{len(push)} bytes of push constants", where=f"kernel {name}", mend=f"pack {struct.calcsize(layout)}"
        )
    make = shim_library if shim else compile_shader
    library = make(msl(name, constants), simd_width=simd_width)
    local = (*local_size, 1, 1)[:3]
    threads = [count * size for count, size in zip((*groups, 1, 1), local)]
    return getattr(library, name)(*arrays, *struct.unpack(layout, push), threads=threads, group_size=local)
