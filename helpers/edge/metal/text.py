"""Reading MSL: its tokens, its kernels, and the rules of Metal that a C++ compiler does not know.

The text reaches g++ as it was written, line by line, but for the address spaces: C++ has none. `device`
and `thread` become spaces, `constant` becomes `const`, and a variable in `threadgroup` memory becomes
a reference to memory that the threads of a threadgroup share. Everything else is the header's work.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from helpers.edge.metal.errors import ArgumentsError, NotMetal

TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/|\\\n)|(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    |(?P<name>[A-Za-z_]\w*)|(?P<number>\.?\d(?:[eEpP][+-]|[\w.])*)|(?P<other>\[\[|\]\]|::|->|<<|>>|.)""",
    re.VERBOSE | re.DOTALL,
)
SPACES = ("device", "constant", "threadgroup", "thread")
# Restrictions of the Metal Shading Language specification, section 1.4.4, and what has no meaning on a GPU.
FORBIDDEN = {
    "double": "Metal has no fp64: use float",
    "goto": "Metal has no goto",
    "new": "a kernel cannot allocate",
    "delete": "a kernel cannot allocate",
    "throw": "Metal has no exceptions",
    "try": "Metal has no exceptions",
    "catch": "Metal has no exceptions",
    "virtual": "Metal has no virtual functions",
    "dynamic_cast": "Metal has no run-time types",
    "typeid": "Metal has no run-time types",
    "thread_local": "every variable of a function is a thread's own already",
    "asm": "Metal has no inline assembler",
    "std": "the library's namespace is metal",
}
HEADERS = re.compile(r"metal_\w+|simd/simd\.h|c10/metal/\w+\.h")
ELEMENTS = {
    "bool": "bool",
    "char": "int8",
    "int8_t": "int8",
    "uchar": "uint8",
    "uint8_t": "uint8",
    "short": "int16",
    "int16_t": "int16",
    "ushort": "uint16",
    "uint16_t": "uint16",
    "int": "int32",
    "int32_t": "int32",
    "uint": "uint32",
    "uint32_t": "uint32",
    "atomic_int": "int32",
    "atomic_uint": "uint32",
    "atomic_float": "float32",
    "long": "int64",
    "int64_t": "int64",
    "ulong": "uint64",
    "uint64_t": "uint64",
    "half": "float16",
    "bfloat": "bfloat16",
    "float": "float32",
}
SCALARS = rf"(?:packed_)?(?:{'|'.join(name for name in ELEMENTS if '_' not in name)})[234]?"
# Attribute to the kind of the runtime's parameter; the specification, table 5.8.
BUILTINS = {
    "thread_position_in_grid": "POSITION_IN_GRID",
    "thread_position_in_threadgroup": "POSITION_IN_GROUP",
    "threadgroup_position_in_grid": "GROUP_POSITION",
    "threads_per_threadgroup": "GROUP_SIZE",
    "dispatch_threads_per_threadgroup": "DISPATCHED_SIZE",
    "threads_per_grid": "GRID_SIZE",
    "threadgroups_per_grid": "GROUPS",
    "thread_index_in_threadgroup": "INDEX_IN_GROUP",
    "thread_index_in_simdgroup": "LANE",
    "simdgroup_index_in_threadgroup": "SIMDGROUP",
    "threads_per_simdgroup": "WIDTH",
    "thread_execution_width": "WIDTH",
    "simdgroups_per_threadgroup": "SIMDGROUPS",
    "dispatch_simdgroups_per_threadgroup": "SIMDGROUPS",
    "thread_index_in_quadgroup": "LANE_IN_QUAD",
    "quadgroup_index_in_threadgroup": "QUAD",
    "quadgroups_per_threadgroup": "QUADS",
}


@dataclass(frozen=True)
class Token:
    """One token. kind: space, text, name, number or other. line: where it begins, from 1."""

    kind: str
    text: str
    line: int


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel.

    name. type: as written, without address space, `const`, `*` and `&`. space: its address space, ""
    for a value. pointer: `*`, `&` or "". buffer: its place among the arguments, None for a built-in
    value. builtin: the attribute that names it. writable: whether the kernel may write through it.
    """

    name: str
    type: str
    space: str
    pointer: str
    buffer: int | None
    builtin: str
    writable: bool

    @property
    def element(self) -> str:
        """The NumPy name of the element's dtype; "" for a struct or a type that the text declares."""
        found = re.fullmatch(r"(?:packed_)?([a-z]+?)[234]?", self.type)
        return ELEMENTS.get(self.type, "") or (ELEMENTS.get(found[1], "") if found else "")


@dataclass(frozen=True)
class KernelText:
    """A kernel's signature. line: of its name."""

    name: str
    parameters: tuple[Parameter, ...]
    line: int

    @property
    def arguments(self) -> tuple[Parameter, ...]:
        """The parameters that a call passes, in order of their buffers."""
        passed = [parameter for parameter in self.parameters if parameter.buffer is not None]
        return tuple(sorted(passed, key=lambda parameter: parameter.buffer))


def tokens(source: str) -> list[Token]:
    """Cut MSL into tokens; joined again they are the source."""
    found, line = [], 1
    for match in TOKEN.finditer(source):
        found.append(Token(match.lastgroup, match[0], line))
        line += match[0].count("\n")
    return found


def read_kernels(source: str) -> dict[str, KernelText]:
    """The kernels of a text by name. Raises `NotMetal` for a signature that Metal would refuse."""
    stream = [token for token in tokens(source) if token.kind != "space"]
    kernels = {}
    for place, token in enumerate(stream):
        if token.text != "kernel" or token.kind != "name":
            continue
        opening = next((i for i in range(place, len(stream)) if stream[i].text == "("), None)
        if opening is None:
            raise NotMetal("a kernel without parameters", where=f"line {token.line}", mend="write its signature")
        name = stream[opening - 1]
        if [t.text for t in stream[place + 1 : opening - 1]][-1:] != ["void"]:
            raise NotMetal(f"the kernel {name.text} returns a value", where=_where(name), mend="make it void")
        if name.text == "main":
            raise NotMetal("a kernel cannot be called main", where=_where(name), mend="give it another name")
        closing = _closing(stream, opening)
        kernels[name.text] = KernelText(
            name.text, _parameters(stream[opening + 1 : closing], _where(name)), name.line
        )
    return kernels


def check_rules(source: str) -> None:
    """Raise `NotMetal` for what g++ accepts and Metal's compiler refuses, as far as a token shows it.

    Covered: the words of `FORBIDDEN`, headers that Metal does not have, pointers and references without
    an address space (to any type in a function's parameters, to Metal's own types elsewhere), and
    threadgroup variables outside of a kernel or with an initialiser. Source: the Metal Shading Language
    specification, sections 1.4 and 4.
    """
    source = _for_metal_only(source)
    stream = [token for token in tokens(source) if token.kind != "space"]
    for place, token in enumerate(stream):
        if token.text == "std" and [t.text for t in stream[place + 1 : place + 2]] != ["::"]:
            continue
        if token.kind == "name" and token.text in FORBIDDEN:
            raise NotMetal(f"`{token.text}`: {FORBIDDEN[token.text]}", where=_where(token), mend="write it in MSL")
        if _is_bare_pointer(stream, place):
            raise NotMetal(
                f"`{token.text}{stream[place + 1].text}` has no address space",
                where=_where(token),
                mend="write device, constant, threadgroup or thread before the type",
            )
    for number, line in enumerate(source.splitlines(), 1):
        header = re.match(r'\s*#\s*include\s*[<"]([^>"]*)', line)
        if header and not HEADERS.fullmatch(header[1]):
            raise NotMetal(f"Metal has no header {header[1]}", where=f"line {number}", mend="include <metal_stdlib>")
    _check_functions(stream)


def for_cpp(source: str) -> str:
    """The text with its address spaces resolved, each line where it was."""
    stream = tokens(source)
    parts = [token.text for token in stream]
    brackets = shared = 0
    skip_until = 0
    for place, token in enumerate(stream):
        brackets = max(0, brackets + {"[[": 1, "]]": -1}.get(token.text, 0))
        if token.kind != "name" or brackets > 0 or place < skip_until:
            continue
        if token.text in ("device", "thread", "kernel"):
            parts[place] = " " * len(token.text)
        elif token.text == "constant":
            parts[place] = "        " if _beside_const(stream, place) else "const   "
        elif token.text == "threadgroup":
            end = _declaration_end(stream, place)
            if end is None:
                parts[place] = " " * len(token.text)
            else:
                declared, count = _shared_variables(stream[place + 1 : end], shared)
                parts[place:end] = [declared] + [""] * (end - place - 1)
                shared, skip_until = shared + count, end
    for start, end in _repeated(stream):
        parts[start:end] = ["\n" * token.text.count("\n") for token in stream[start:end]]
    return "".join(parts)


def swizzles(source: str) -> str:
    """Preprocessor lines that declare the swizzles used in the text, as `SHIM_SWIZZLES_2` … of the header."""
    stream = [token for token in tokens(source) if token.kind != "space"]
    used = sorted(
        {
            name.text
            for dot, name in pairwise(stream)
            if dot.text == "." and re.fullmatch(r"[xyzw]{2,4}|[rgba]{2,4}", name.text)
        }
    )
    lines = []
    for size in (2, 3, 4):
        members = [(name, ["xyzwrgba".index(letter) % 4 for letter in name]) for name in used]
        declared = " ".join(
            f"shim::swizzle<metal::vec<T, {len(places)}>, T, {', '.join(map(str, places))}> {name};"
            for name, places in members
            if max(places) < size
        )
        lines.append(f"#define SHIM_SWIZZLES_{size}(T) {declared}")
    return "\n".join(lines) + "\n"


def dispatch_table(kernels: dict[str, KernelText]) -> str:
    """C++ that lets the runtime call the kernels by number."""
    lines = ["#include <dispatch.h>"]
    rows = []
    for number, kernel in enumerate(kernels.values()):
        entries = [
            f"{{shim::BUFFER, {p.buffer}}}" if p.builtin == "" else f"{{shim::{BUILTINS[p.builtin]}, 0}}"
            for p in kernel.parameters
        ]
        lines.append(f"SHIM_KERNEL({number}, {kernel.name})")
        lines.append(f"static const shim::Parameter shim_parameters_{number}[] = {{{', '.join(entries)}}};")
        call = f"shim_call_{number}, shim_parameters_{number}, {len(entries)}"
        rows.append(f'{{"{kernel.name}", {call}, shim_signature_{number}::sizes}}')
    lines.append(f'extern "C" const shim::Kernel shim_kernels[] = {{{", ".join(rows)}}};')
    lines.append(f'extern "C" const unsigned shim_kernel_count = {len(rows)};')
    return "\n".join(lines) + "\n"


def _for_metal_only(source: str) -> str:
    """The text without what `#ifdef __METAL__` leaves to the host's compiler; the lines stay."""
    kept, stack = [], []  # for each open #if: whether its branch is Metal's, None where it does not ask
    for line in source.splitlines():
        words = line.strip().removeprefix("#").split()
        if line.lstrip().startswith("#") and words:
            if words[0] in ("if", "ifdef", "ifndef"):
                asks = words[1:] in (["__METAL__"], ["defined(__METAL__)"])
                stack.append(words[0] != "ifndef" if asks else None)
            elif words[0] == "else" and stack and stack[-1] is not None:
                stack[-1] = not stack[-1]
            elif words[0] == "endif" and stack:
                stack.pop()
        kept.append("" if False in stack else line)
    return "\n".join(kept)


def _where(token: Token) -> str:
    return f"line {token.line}"


def _is_bare_pointer(stream: list[Token], place: int) -> bool:
    """Whether a pointer or reference to one of Metal's types begins here, without an address space."""
    following = stream[place + 1].text if place + 1 < len(stream) else ""
    if following not in ("*", "&") or not re.fullmatch(SCALARS, stream[place].text):
        return False
    start = place
    while start > 0 and (stream[start - 1].kind == "name" or stream[start - 1].text == "::"):
        start -= 1
    return not {token.text for token in stream[start:place]} & {*SPACES, "decltype", "typename"}


def _repeated(stream: list[Token]) -> Iterator[tuple[int, int]]:
    """The definitions that differ from an earlier one in address spaces alone: to C++ they are the same twice."""
    seen, start, place = set(), 0, 0
    while place < len(stream):
        if stream[place].text == "{":
            end = _closing(stream, place) + 1
            words = tuple(t.text for t in stream[start:end] if t.kind != "space" and t.text not in SPACES)
            if words in seen:
                yield start, end
            seen.add(words)
            start = place = end
        else:
            place += 1
            start = place if stream[place - 1].text == ";" else start


def _closing(stream: list[Token], opening: int) -> int:
    """The place of the bracket that closes the one at `opening`."""
    pairs = {"(": ")", "{": "}", "[": "]", "[[": "]]"}
    depth = 0
    close = pairs[stream[opening].text]
    for place in range(opening, len(stream)):
        depth += {stream[opening].text: 1, close: -1}.get(stream[place].text, 0)
        if depth == 0:
            return place
    raise NotMetal(f"`{stream[opening].text}` is never closed", where=_where(stream[opening]), mend="close it")


def _split(stream: list[Token]) -> Iterator[list[Token]]:
    """The parts between the commas that stand in no bracket."""
    depth, part = 0, []
    for token in stream:
        depth += {"(": 1, "[": 1, "[[": 2, "<": 1, "{": 1}.get(token.text, 0)
        depth -= {")": 1, "]": 1, "]]": 2, ">": 1, ">>": 2, "}": 1}.get(token.text, 0)
        if token.text == "," and depth == 0:
            yield part
            part = []
        else:
            part.append(token)
    if part:
        yield part


def _parameters(stream: list[Token], line: str) -> tuple[Parameter, ...]:
    parts = [_parameter(part, line) for part in _split(stream)]
    taken = {parameter.buffer for parameter in parts if isinstance(parameter.buffer, int) and parameter.buffer >= 0}
    placed, free = [], 0
    for parameter in parts:
        if parameter.buffer == -1:
            while free in taken:
                free += 1
            taken.add(free)
            parameter = Parameter(**{**vars(parameter), "buffer": free})
        placed.append(parameter)
    return tuple(placed)


def _parameter(part: list[Token], line: str) -> Parameter:
    attributes, plain, depth = [], [], 0
    for token in part:
        depth += token.text == "[["
        (attributes if depth else plain).append(token)
        depth -= token.text == "]]"
    words = [token.text for token in plain]
    names = [token for token in plain if token.kind == "name"]
    if len(names) < 2:
        raise NotMetal("a parameter without a type and a name", where=line, mend="write both")
    name, first = names[-1].text, plain[0]
    space = next((word for word in words if word in SPACES), "")
    pointer = "*" if "*" in words else "&" if "&" in words else ""
    attribute = attributes[1].text if len(attributes) > 1 else ""
    if pointer and not space:
        raise NotMetal(
            f"the parameter {name} is a `{pointer}` without an address space",
            where=_where(first),
            mend="write device, constant or threadgroup before its type",
        )
    skipped = {*SPACES, "const", "volatile", "*", "&", "struct", "coherent"}
    kind = "".join(word for word in words[: len(words) - words[::-1].index(name) - 1] if word not in skipped)
    writable = space == "device" and "const" not in words[: words.index(pointer)] if pointer else False
    if space == "threadgroup":
        raise ArgumentsError(
            f"the parameter {name} takes threadgroup memory from the host",
            where=_where(first),
            mend="declare the variable inside of the kernel: torch.mps.compile_shader cannot set its length",
        )
    if pointer:
        return Parameter(name, kind, space, pointer, _buffer_index(attributes, first), "", writable)
    if attribute not in BUILTINS:
        known = f"[[{attribute}]] is not known here" if attribute else "it has no attribute"
        raise NotMetal(
            f"the parameter {name} is a value, but {known}",
            where=_where(first),
            mend=f"pass it as `constant {kind}& {name}`, or give it an attribute such as [[thread_position_in_grid]]",
        )
    return Parameter(name, kind, "", "", None, attribute, False)


def _buffer_index(attributes: list[Token], first: Token) -> int:
    """The number of `[[buffer(n)]]`; -1 for a parameter that takes the next free one."""
    written = "".join(token.text for token in attributes)
    found = re.fullmatch(r"\[\[buffer\((\d+)\)\]\]", written)
    if written and not found:
        raise ArgumentsError(f"{written} cannot be passed here", where=_where(first), mend="use [[buffer(n)]]")
    return int(found[1]) if found else -1


def _beside_const(stream: list[Token], place: int) -> bool:
    """Whether a `const` stands in the same run of words as `constant`."""
    for step in (1, -1):
        at = place + step
        while 0 <= at < len(stream) and (stream[at].kind in ("space", "name", "number") or stream[at].text == "::"):
            if stream[at].text == "const":
                return True
            at += step
    return False


def _declaration_end(stream: list[Token], place: int) -> int | None:
    """Where the declaration of threadgroup variables ends (its `;`); None when the word qualifies a pointer."""
    angle = 0
    for at in range(place + 1, len(stream)):
        text = stream[at].text
        angle += {"<": 1, ">": -1, ">>": -2}.get(text, 0)
        if angle > 0:
            continue
        if text in ("*", "&", ")", "(", "{", "}") or angle < 0:
            return None
        if text in ("[", ";", ",", "="):
            return next(i for i in range(at, len(stream)) if stream[i].text == ";")
    return None


def _shared_variables(declaration: list[Token], number: int) -> tuple[str, int]:
    """`float a[4], b` as references to shared memory, and how many there are; the lines stay."""
    words = [token for token in declaration if token.kind != "space"]
    parts = list(_split(words))
    first = parts[0]
    bracket = next((i for i, token in enumerate(first) if token.text == "["), len(first))
    kind = " ".join(token.text for token in first[: bracket - 1])
    made = []
    for place, part in enumerate(parts):
        name = first[bracket - 1].text if place == 0 else part[0].text
        suffix = "".join(token.text for token in (first[bracket:] if place == 0 else part[1:]))
        made.append(f'auto& {name} = shim::shared<{kind}{suffix}>({number + place}, "{name}");')
    lines = "\n" * sum(token.text.count("\n") for token in declaration)
    return " ".join(made).removesuffix(";") + lines, len(parts)


def _check_functions(stream: list[Token]) -> None:
    """Rules on parameters and threadgroup variables, function by function."""
    place, depth = 0, 0
    while place < len(stream):
        token = stream[place]
        if token.text in ("namespace", "extern"):
            opening = next((i for i in range(place, len(stream)) if stream[i].text in ("{", ";", "(")), place)
            place = opening + 1 if stream[opening].text == "{" else place + 1
            continue
        if token.text == "(" and depth == 0 and place and stream[place - 1].kind == "name":
            closing = _closing(stream, place)
            if closing + 1 < len(stream) and stream[closing + 1].text == "{":
                _check_function(stream, place, closing)
                place = _closing(stream, closing + 1) + 1
                continue
        place += 1


def _check_function(stream: list[Token], opening: int, closing: int) -> None:
    start = opening
    while start > 0 and stream[start - 1].text not in (";", "}", "{"):
        start -= 1
    is_kernel = any(token.text == "kernel" for token in stream[start:opening])
    for part in _split(stream[opening + 1 : closing]):
        words = [token.text for token in part]
        if ("*" in words or "&" in words) and not set(words) & set(SPACES) and "(" not in words:
            raise NotMetal(
                f"the pointer or reference `{' '.join(words)}` has no address space",
                where=_where(part[0]),
                mend="write device, constant, threadgroup or thread before its type",
            )
    body_end = _closing(stream, closing + 1)
    for place in range(closing + 1, body_end):
        if stream[place].text != "threadgroup" or stream[place - 1].text == "[[":
            continue
        end = _declaration_end(stream, place)
        if end is None:
            continue
        name = _where(stream[place])
        if not is_kernel:
            raise NotMetal(
                "a threadgroup variable outside of a kernel",
                where=name,
                mend="declare it in the kernel and pass a pointer",
            )
        if any(token.text == "=" for token in stream[place:end]):
            raise NotMetal(
                "a threadgroup variable with an initialiser",
                where=name,
                mend="let the threads write it, then wait at a barrier",
            )
