"""What a SPIR-V module needs of the device, and how it treats each of its buffers."""

from dataclasses import dataclass

from helpers.edge.spirv import instructions

# Opcodes and decorations from the SPIR-V specification, section 3.
OP_CAPABILITY, OP_TYPE_INT, OP_TYPE_FLOAT, OP_TYPE_VECTOR = 17, 21, 22, 23
OP_TYPE_ARRAY, OP_TYPE_RUNTIME_ARRAY, OP_TYPE_STRUCT, OP_TYPE_POINTER = 28, 29, 30, 32
OP_VARIABLE, OP_DECORATE, OP_MEMBER_DECORATE = 59, 71, 72
NON_WRITABLE, NON_READABLE, BINDING = 24, 25, 33


@dataclass(frozen=True)
class Access:
    """One buffer of a shader. reads, writes: what the shader declares that it may do.

    element: `float32`, `int8`, … of the array at its end, or "" when it has another form.
    """

    binding: int
    reads: bool
    writes: bool
    element: str


@dataclass(frozen=True)
class Needs:
    """capabilities: numbers that the module declares. accesses: its buffers, by binding number."""

    capabilities: frozenset[int]
    accesses: tuple[Access, ...]


def read_needs(spirv: bytes) -> Needs:
    """Read the capabilities and the buffers of a module that `helpers.edge.spirv.reflect` accepts."""
    module = _Scan(spirv)
    accesses = (module.access(key, pointer) for key, pointer in module.variables if key in module.bindings)
    return Needs(frozenset(module.capabilities), tuple(sorted(accesses, key=lambda access: access.binding)))


class _Scan:
    """The instructions that tell about buffers, by result id."""

    def __init__(self, spirv: bytes):
        self.capabilities: set[int] = set()
        self.types: dict[int, tuple[int, ...]] = {}
        self.variables: list[tuple[int, int]] = []
        self.bindings: dict[int, int] = {}
        self.marks: set[tuple[int, int]] = set()
        self.member_marks: dict[tuple[int, int], int] = {}
        for opcode, operands in instructions(spirv):
            self._read(opcode, operands)

    def _read(self, opcode: int, w: tuple[int, ...]) -> None:
        if opcode == OP_CAPABILITY:
            self.capabilities.add(w[0])
        elif OP_TYPE_INT <= opcode <= OP_TYPE_POINTER:
            self.types[w[0]] = (opcode, *w[1:])
        elif opcode == OP_VARIABLE:
            self.variables.append((w[1], w[0]))
        elif opcode == OP_DECORATE and w[1] == BINDING:
            self.bindings[w[0]] = w[2]
        elif opcode == OP_DECORATE and w[1] in (NON_WRITABLE, NON_READABLE):
            self.marks.add((w[0], w[1]))
        elif opcode == OP_MEMBER_DECORATE and w[2] in (NON_WRITABLE, NON_READABLE):
            self.member_marks[w[0], w[2]] = self.member_marks.get((w[0], w[2]), 0) + 1

    def access(self, key: int, pointer: int) -> Access:
        block = self.types[pointer][2]
        members = self.types.get(block, (0,))[1:]

        def never(mark: int) -> bool:
            """A block is marked as a whole, or member by member."""
            marked = self.member_marks.get((block, mark), 0)
            return (key, mark) in self.marks or (bool(members) and marked == len(members))

        element = self._element(members[-1]) if members else ""
        return Access(self.bindings[key], not never(NON_READABLE), not never(NON_WRITABLE), element)

    def _element(self, key: int) -> str:
        opcode, *rest = self.types.get(key, (0,))
        if opcode in (OP_TYPE_ARRAY, OP_TYPE_RUNTIME_ARRAY, OP_TYPE_VECTOR):
            return self._element(rest[0])
        if opcode == OP_TYPE_FLOAT:
            return f"float{rest[0]}"
        if opcode == OP_TYPE_INT:
            return f"{'int' if rest[1] else 'uint'}{rest[0]}"
        return ""
