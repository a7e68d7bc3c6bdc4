"""Slang: one text compiled to SPIR-V and to MSL, where slangpy is installed.

slangpy carries the compiler as a library, and no call of its own returns the code that was made. So the
library's C functions are called here, those of its header slang-deprecated.h; slangpy itself is not imported.
The course's texts lie beside the GLSL, and take the same buffers and push constants. What GLSL leaves to
specialization constants is a macro of the same name, GROUP where GLSL has no name for it.
"""

import ctypes
import re
import struct
import warnings
from collections.abc import Mapping, Sequence
from ctypes import POINTER, c_char_p, c_int, c_int32, c_size_t, c_uint32, c_void_p
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from helpers.edge import shaders
from helpers.edge.metal import Execution, compile_shader, shim_library, twins
from helpers.edge.vulkan.access import OP_CAPABILITY
from helpers.errors import CourseError

PACKAGE, INSTALL = "slangpy", "pip install slangpy==0.43.1"
# Numbers of slang.h: targets, the language Slang, the stage of compute, and MSL without #line.
SPIRV, METAL, LANGUAGE, COMPUTE, NO_LINES = 6, 24, 1, 6, 1
FUNCTIONS = {  # name to result and arguments
    "spGetBuildTagString": (c_char_p,),
    "spCreateSession": (c_void_p, c_char_p),
    "spCreateCompileRequest": (c_void_p, c_void_p),
    "spDestroyCompileRequest": (None, c_void_p),
    "spAddCodeGenTarget": (c_int, c_void_p, c_int),
    "spSetTargetLineDirectiveMode": (None, c_void_p, c_int, c_uint32),
    "spAddPreprocessorDefine": (None, c_void_p, c_char_p, c_char_p),
    "spAddTranslationUnit": (c_int, c_void_p, c_int, c_char_p),
    "spAddTranslationUnitSourceString": (None, c_void_p, c_int, c_char_p, c_char_p),
    "spAddEntryPoint": (c_int, c_void_p, c_int, c_char_p, c_int),
    "spCompile": (c_int32, c_void_p),
    "spGetDiagnosticOutput": (c_char_p, c_void_p),
    "spGetEntryPointCode": (c_void_p, c_void_p, c_int, POINTER(c_size_t)),
}
ENTRY = re.compile(r'\[shader\("compute"\)\][^{};]*?\bvoid\s+(\w+)\s*\(')
# The compiler's messages: an error, where it is, what is marked there; a use that the target lacks; its own limits.
ERROR = re.compile(r"error\[E\d+\]: (.*)\n(?:\s*-+> (.+?):(\d+):\d+\n)?")
DETAIL = re.compile(r"\|\s*\^+ (.*)")
USED = re.compile(r"error\[E36107\].*?note: see using of '(\w[\w.]*)'\n\s*-+> (.+?):(\d+):\d+\n", re.DOTALL)
LIMIT = re.compile(r"error\[E9999\d\]: .*?(?:unexpected|Slang compiler): (.*)")
LIMIT_LINE = re.compile(r"(?m)^(.+?)\((\d+)\): note")
NO_SUCH_ENTRY = "error[E38000]"
NEXT = re.compile(r"\n(?:note|warning|error|internal error)\b")
# Capabilities of SPIR-V, section 3.2.31: what uniform buffers need as well, and storage buffers alone.
NARROWER = {4434: 4433, 4449: 4448}
OP_VARIABLE, UNIFORM = 59, 2


class SlangError(CourseError):
    """Anything that goes wrong in `helpers.edge.slang`."""


class SlangUnavailable(SlangError):
    """There is no Slang compiler here; `mend` is the line that installs it."""


class SlangCompileError(SlangError):
    """A text that Slang does not compile for the target; `where` names the file and the line."""


class SlangWarning(UserWarning):
    """What the compiler said of a text that it compiled, such as two buffers with one binding."""


def why_not() -> str:
    """Why nothing can be compiled here, in one line; "" when it can."""
    try:
        _session()
    except SlangUnavailable as error:
        return f"{error.what}: {error.mend}"
    return ""


def version() -> str:
    """The compiler and the package that brought it: `Slang 2026.12 (slangpy 0.43.1)`."""
    library, _ = _session()
    return f"Slang {library.spGetBuildTagString().decode()} ({PACKAGE} {metadata.version(PACKAGE)})"


def names() -> tuple[str, ...]:
    """The course's kernels that have a Slang text, sorted."""
    return tuple(sorted(path.stem for path in shaders.FOLDER.glob("*.slang")))


def source(name: str) -> str:
    """The Slang text of a kernel. Raises `SlangError` for one without."""
    if name not in names():
        raise SlangError(f"{name} has no Slang text", mend=f"there are {', '.join(names())}")
    return (shaders.FOLDER / f"{name}.slang").read_text(encoding="utf-8")


def spirv(name: str, constants: Mapping[int, int] | None = None) -> bytes:
    """SPIR-V of a kernel's text. constants: values of its GLSL twin's specialization constants, by id."""
    return compile_spirv(source(name), name, macros(name, constants or {}), f"{name}.slang")


def msl(name: str, constants: Mapping[int, int] | None = None) -> str:
    """MSL of a kernel's text, with the arguments of `spirv`."""
    return compile_msl(source(name), name, macros(name, constants or {}), f"{name}.slang")


def macros(name: str, constants: Mapping[int, int]) -> dict[str, int]:
    """Constants by id as the macros of a kernel's text. Raises `SlangError` for one that it does not have."""
    takes, found = twins.signature(name), {}
    for number, value in constants.items():
        macro = takes.constants.get(number, "GROUP" if number in takes.sizes else "")
        if not re.search(rf"(?m)^#ifndef {macro}$", source(name)) or not macro:
            there = ", ".join(re.findall(r"(?m)^#ifndef (\w+)$", source(name)))
            raise SlangError(f"the Slang text of {name} has no macro for constant {number}", mend=f"it has {there}")
        found[macro] = value
    return found


def call(
    name: str,
    groups: Sequence[int],
    local_size: Sequence[int],
    arrays: Sequence[np.ndarray],
    push: bytes,
    constants: Mapping[int, int] | None = None,
    *,
    simd_width: int = 32,
    shim: bool = False,
) -> Execution:
    """Run the MSL of a kernel's text; arguments as for `helpers.edge.metal.twins.call`.

    Slang makes one struct of the push constants, so they go as one buffer behind the others.
    """
    make = shim_library if shim else compile_shader
    library = make(msl(name, constants), simd_width=simd_width)
    local = (*local_size, 1, 1)[:3]
    threads = [count * size for count, size in zip((*groups, 1, 1), local)]
    return getattr(library, name)(*arrays, push, threads=threads, group_size=local)


def compile_spirv(
    text: str, entry: str, macros: Mapping[str, int] | None = None, path: str = "kernel.slang"
) -> bytes:
    """SPIR-V 1.5 of one compute entry point, which is called `main` in it.

    macros: as if defined at the head of the text. path: what messages call it. Warns with `SlangWarning`.
    Raises `SlangCompileError`, or `SlangUnavailable` without a compiler.
    """
    return _narrow(_compile(text, entry, SPIRV, macros or {}, path))


def compile_msl(text: str, entry: str, macros: Mapping[str, int] | None = None, path: str = "kernel.slang") -> str:
    """MSL of one compute entry point, under its own name; arguments and errors as for `compile_spirv`."""
    return _compile(text, entry, METAL, macros or {}, path).decode()


def _compile(text: str, entry: str, target: int, macros: Mapping[str, int], path: str) -> bytes:
    library, session = _session()
    request = library.spCreateCompileRequest(session)
    try:
        place = library.spAddCodeGenTarget(request, target)
        library.spSetTargetLineDirectiveMode(request, place, NO_LINES)
        for macro, value in macros.items():
            library.spAddPreprocessorDefine(request, macro.encode(), str(value).encode())
        unit = library.spAddTranslationUnit(request, LANGUAGE, None)
        library.spAddTranslationUnitSourceString(request, unit, path.encode(), text.encode())
        place = library.spAddEntryPoint(request, unit, entry.encode(), COMPUTE)
        failed = library.spCompile(request) < 0
        said = (library.spGetDiagnosticOutput(request) or b"").decode(errors="replace")
        size = c_size_t()
        code = None if failed else library.spGetEntryPointCode(request, place, ctypes.byref(size))
        if not code:
            raise _complaint(said, text, entry, path)
        if said.strip():
            warnings.warn(said.strip(), SlangWarning, stacklevel=3)
        return ctypes.string_at(code, size.value)
    finally:
        library.spDestroyCompileRequest(request)


@cache
def _session() -> tuple[ctypes.CDLL, int]:
    """The library and a session of its compiler, made once; loading Slang's own library takes half a second."""
    library = _load(_library_path())
    session = library.spCreateSession(None)
    if not session:
        raise SlangUnavailable("Slang's library does not start", mend=INSTALL)
    return library, session


def _library_path() -> Path:
    found = find_spec(PACKAGE)
    folders = list(found.submodule_search_locations or ()) if found else []
    if not folders:
        raise SlangUnavailable("slangpy is not installed", mend=INSTALL)
    paths = sorted(path for path in Path(folders[0]).glob("*slang-compiler*") if path.suffix != ".a")
    if not paths:
        raise SlangUnavailable("this slangpy has no libslang-compiler", where=folders[0], mend=INSTALL)
    return paths[0]


def _load(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
        for name, (result, *arguments) in FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise SlangUnavailable(f"Slang's library cannot be used ({error})", where=str(path), mend=INSTALL) from None
    return library


def _complaint(said: str, text: str, entry: str, path: str) -> SlangCompileError:
    """The compiler's first error in the course's words."""
    if NO_SUCH_ENTRY in said:
        there = ", ".join(ENTRY.findall(text)) or 'none; write [shader("compute")] before a function'
        return SlangCompileError(f"no entry point {entry!r}", where=path, mend=f"the text has: {there}")
    if used := USED.search(said):
        what = f"{used[1]} is not to be had on this target"
        mend = "write it in operations that every target has, or compile for another target"
        return SlangCompileError(what, where=_where(used[2], int(used[3]), text, path), mend=mend)
    if limit := LIMIT.search(said):
        line = LIMIT_LINE.search(said)
        where = _where(line[1], int(line[2]), text, path) if line else path
        return SlangCompileError(
            f"Slang cannot write this for the target: {limit[1]}", where=where, mend="do without it"
        )
    error = ERROR.search(said)
    if error is None:
        first = (said.strip().splitlines() or ["nothing, and made no code"])[0]
        return SlangCompileError(f"the compiler said: {first}", where=path, mend="correct the text")
    detail = DETAIL.search(NEXT.split(said[error.end() :])[0])
    what = f"{error[1]}: {detail[1]}" if detail else error[1]
    where = _where(error[2], int(error[3]), text, path) if error[2] else path
    return SlangCompileError(what, where=where, mend="correct the line, or the one before it")


def _where(file: str, number: int, text: str, path: str) -> str:
    lines = text.splitlines()
    line = lines[number - 1].strip() if file == path and number <= len(lines) else ""
    return f"{file} line {number}: {line}" if line else f"{file} line {number}"


def _narrow(module: bytes) -> bytes:
    """The module without capabilities that only uniform buffers need, when it has none.

    For small types Slang declares that it uses them in uniform buffers too (shader-slang/slang issue 8760),
    which fewer devices can.
    """
    words = list(struct.unpack(f"<{len(module) // 4}I", module))
    place, capabilities = 5, []
    while place < len(words):
        count, opcode = words[place] >> 16, words[place] & 0xFFFF
        if opcode == OP_CAPABILITY:
            capabilities.append(place + 1)
        elif opcode == OP_VARIABLE and words[place + 3] == UNIFORM:
            return module
        place += count
    for place in capabilities:
        words[place] = NARROWER.get(words[place], words[place])
    return struct.pack(f"<{len(words)}I", *words)
