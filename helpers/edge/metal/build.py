"""From MSL to a program: g++ with the stand-in for Metal's library, kept on disk by the hash of all that went in.

A kernel becomes a program of its own that one child process runs, so nothing that it does reaches this
one. `-ffp-contract=off` keeps products and sums apart, each rounded, and literals are fp32 as in Metal.
"""

import difflib
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from helpers.edge.metal import text
from helpers.edge.metal.errors import MslCompileError, ShimUnavailable, UnknownName

FOLDER = Path(__file__).parent / "shim"
CACHE_VARIABLE = "COURSE_CACHE"
SOURCE_NAME = "kernel.metal"
COMPILE_SECONDS = 120
COMMON = ("-std=c++17", "-fno-exceptions", "-fno-rtti", "-w")
FLAGS = (
    *COMMON,
    "-O1",
    "-finline-small-functions",
    "-g1",
    "-gdwarf-4",
    "-fno-pie",
    "-fsanitize=thread,bounds,integer-divide-by-zero",
    "-fno-sanitize-recover=bounds,integer-divide-by-zero",
    "-ffp-contract=off",
    "-fexcess-precision=16",
    "-fsingle-precision-constant",
    "-fwrapv",
    "-fsigned-char",
    "-fno-strict-aliasing",
    "-fno-finite-loops",
    "-fno-tree-loop-im",
    "-fno-tree-loop-distribute-patterns",
    "-Wno-literal-suffix",
    "-fmax-errors=3",
)
# Names that Metal has and the stand-in does not; the Metal Shading Language specification, chapters 2 and 6.
NOT_HERE = re.compile(
    r"texture\w*|depth\w*|sampler\w*|(?:float|half)[234]x[234]|matrix|imageblock\w*|intersect\w*|ray\w*|"
    r"simdgroup_async\w*|simdgroup_event|tensor\w*|mpp|visible_function_table|indirect_\w+|command_buffer|"
    r"function_constant|is_function_constant_defined|primitive_\w+|render_\w+|os_log\w*|atomic_fetch_\w+_float"
)
MESSAGE = re.compile(rf"{re.escape(SOURCE_NAME)}:(\d+):\d+: (?:fatal )?error: (.*)")
UNDECLARED = re.compile(
    r"‘([^’]+)’ (?:was not declared|is not a member|does not name a type|has not been declared|not declared)"
    r"|has no member named ‘([^’]+)’"
)


@dataclass(frozen=True)
class Program:
    """A compiled text. path: of the program. kernels: their signatures, in the order of their numbers."""

    path: Path
    source: str
    kernels: dict[str, text.KernelText]

    def line_of(self, address: int) -> int | None:
        """The line of the text that an address of the program belongs to; None when it is not the text's."""
        if not address:
            return None
        tool = shutil.which("addr2line")
        if tool is None:
            return None
        # A return address lies behind its call.
        command = [tool, "-i", "-e", str(self.path), hex(address - 1)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = re.search(rf"{re.escape(SOURCE_NAME)}:(\d+)", done.stdout)
        return int(found[1]) if found else None

    def where(self, line: int | None) -> str:
        """`line 12: sum += a[i];`, or "" when the line is not known."""
        lines = self.source.splitlines()
        return f"line {line}: {lines[line - 1].strip()}" if line and line <= len(lines) else ""


@cache
def compiler() -> tuple[str, str]:
    """The path of g++ and its version, `12.2.0`. Raises `ShimUnavailable` without one that knows `_Float16`."""
    path = shutil.which("g++")
    mend = "apt-get install g++ (version 12 or newer)"
    if path is None:
        raise ShimUnavailable("there is no g++ to compile MSL with", where="PATH", mend=mend)
    version = _run([path, "-dumpfullversion"]).stdout.strip()
    probe = _run([path, "-std=c++17", "-x", "c++", "-fsyntax-only", "-"], "_Float16 half = 1; float f = half;")
    if probe.returncode or not re.fullmatch(r"[\d.]+", version):
        raise ShimUnavailable(f"{path} {version} is no GNU compiler with the type _Float16", mend=mend)
    return path, version


def build(source: str) -> Program:
    """Compile MSL; what was compiled before is taken from the disk.

    Raises `NotMetal` for what Metal's compiler would refuse, `UnknownName` for a name that nobody
    declares, `MslCompileError` for all else that g++ refuses, `ShimUnavailable` without a g++.
    """
    text.check_rules(source)
    kernels = text.read_kernels(source)
    if not kernels:
        raise MslCompileError("the text has no kernel", mend="write `kernel void name(…)`")
    path, version = compiler()
    unit = f'{text.swizzles(source)}#include <metal_types>\n#include "{SOURCE_NAME}"\n{text.dispatch_table(kernels)}'
    translated = text.for_cpp(source) + "\n"
    binary = _folder() / f"msl-{_digest(version, *FLAGS, *COMMON, _shim_digest(), unit, translated)}"
    if not binary.exists():
        _compile(path, unit, translated, binary)
    return Program(binary, source, kernels)


def _compile(path: str, unit: str, source: str, binary: Path) -> None:
    runtime = _runtime(path)
    with tempfile.TemporaryDirectory(dir=binary.parent) as folder:
        code, made = Path(folder, "unit.o"), Path(folder, "program")
        Path(folder, "unit.cpp").write_text(unit, encoding="utf-8")
        Path(folder, SOURCE_NAME).write_text(source, encoding="utf-8")
        done = _run([path, *FLAGS, "-I", str(FOLDER), "-c", str(Path(folder, "unit.cpp")), "-o", str(code)])
        if done.returncode:
            raise _complaint(done.stderr, source)
        _require_linked(_run([path, "-no-pie", str(code), str(runtime), "-o", str(made)]))
        os.replace(made, binary)


def _require_linked(done: subprocess.CompletedProcess) -> None:
    if undefined := re.search(r"undefined reference to `([^']*)'", done.stderr):
        raise UnknownName(f"`{undefined[1]}` is declared and never defined", mend="define it in the text")
    _require(done)


def _runtime(path: str) -> Path:
    """The compiled runtime, which all programs share."""
    version = compiler()[1]
    made = _folder() / f"msl-runtime-{_digest(version, *COMMON, _shim_digest())}.o"
    if not made.exists():
        with tempfile.TemporaryDirectory(dir=made.parent) as folder:
            code = Path(folder, "runtime.o")
            source = str(FOLDER / "runtime.cpp")
            _require(_run([path, *COMMON, "-O2", "-fno-pie", "-c", source, "-o", str(code)]))
            os.replace(code, made)
    return made


def _complaint(output: str, source: str) -> MslCompileError:
    found = MESSAGE.search(output) or _inside_a_header(output)
    if found is None:
        first = next((line for line in output.splitlines() if "error" in line), output.strip()[:300])
        return MslCompileError(f"the compiler said: {first}", mend="correct the text")
    number, message = int(found[1]), found[2]
    lines = source.splitlines()
    where = f"line {number}: {lines[number - 1].strip() if number <= len(lines) else ''}"
    unknown = UNDECLARED.search(message)
    if unknown is None:
        return MslCompileError(_in_metals_words(message), where=where, mend="correct the line, or the one before it")
    name = (unknown[1] or unknown[2]).rpartition("::")[2]
    if NOT_HERE.fullmatch(name):
        return UnknownName(
            f"Metal has `{name}`, and the stand-in does not", where=where, mend="run this kernel on a Mac only"
        )
    return UnknownName(f"`{name}` is not declared", where=where, mend=_suggestion(name))


def _inside_a_header(output: str) -> re.Match | None:
    """The line of the text that made a header fail, and the header's message behind it."""
    pattern = rf"{re.escape(SOURCE_NAME)}:(\d+):\d+:\s+required from here.*?error: ([^\n]*)"
    return re.search(pattern, output, re.DOTALL)


def _in_metals_words(message: str) -> str:
    return message.replace("metal::vec<", "vec<").replace("_Float16", "half")


def _suggestion(name: str) -> str:
    words = set()
    for header in FOLDER.glob("metal_*"):
        words |= set(re.findall(r"\b[a-z]\w{2,}\b", header.read_text(encoding="utf-8")))
    folds = [
        f"{group}_{name}" for group in ("simd", "quad") for name in ("sum", "product", "min", "max", "and", "or")
    ]
    close = difflib.get_close_matches(name, words | set(folds), 1, 0.75)
    return f"did you mean {close[0]}?" if close else "declare it, include its header, or spell it as Metal does"


def _folder() -> Path:
    asked = os.environ.get(CACHE_VARIABLE)
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = (Path(asked) if asked else Path(home, "shards-to-shaders")) / "metal"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ShimUnavailable(f"compiled kernels cannot be kept: {error}", mend=f"set {CACHE_VARIABLE}") from None
    return folder


@cache
def _shim_digest() -> str:
    return _digest(*(path.read_text(encoding="utf-8") for path in sorted(FOLDER.iterdir()) if path.is_file()))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _run(command: list[str], given: str | None = None) -> subprocess.CompletedProcess:
    # The compiler's messages are read: they must be in one language, with its own quotation marks.
    environment = os.environ | {"LC_ALL": "C.UTF-8"}
    try:
        return subprocess.run(
            command,
            input=given,
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            timeout=COMPILE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        what = f"the compiler did not end within {COMPILE_SECONDS} s"
        raise MslCompileError(what, mend="make the text smaller") from None


def _require(done: subprocess.CompletedProcess) -> None:
    if done.returncode:
        raise ShimUnavailable(f"g++ failed on the runtime: {done.stderr.strip()[:500]}", mend="use g++ 12 or newer")
