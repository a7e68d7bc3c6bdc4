"""What a SPIR-V module says of its cooperative matrices, before any device has seen it."""

from collections.abc import Iterator

from helpers.course.exercise import Finding, Symptom
from helpers.course.exercises.edge.uniform import barrier_for_some
from helpers.edge import spirv
from helpers.edge.spirv import Instruction, instructions
from helpers.edge.vulkan import MatrixShape
from helpers.edge.vulkan.access import read_needs

# Opcodes and numbers from the SPIR-V specification, section 3, and SPV_KHR_cooperative_matrix.
OP_TYPE_INT, OP_TYPE_FLOAT, OP_CONSTANT, OP_FUNCTION, OP_CALL, OP_BARRIER = 21, 22, 43, 54, 57, 224
OP_CONSTANT_COMPOSITE, OP_CONSTANT_NULL, OP_CONSTRUCT = 44, 46, 80
OP_TYPE_MATRIX, OP_MATRIX_LOAD, OP_MATRIX_STORE, OP_MATRIX_MUL_ADD = 4456, 4457, 4458, 4459
GIVE_VALUES = {OP_CONSTANT_COMPOSITE, OP_CONSTANT_NULL, OP_CONSTRUCT, OP_MATRIX_LOAD}
SHADER, SUBGROUP = 1, 3  # a capability, and a scope
SCOPES = ("of all devices", "of a device", "of a workgroup", "of a subgroup", "of an invocation")
USES = ("A", "B", "the sums")


def examine_plain(module: bytes, side: int) -> Finding | None:
    """The kernel without matrices, as a module: what is wrong with its workgroup, or what it asks of the device."""
    size = spirv.reflect(module).local_size
    if size != (side, side, 1):
        asked = f"Without matrices a workgroup has {side} × {side} invocations."
        return Finding(asked, f"its local size is {size}", Symptom.INTERFACE, 1)
    if read_needs(module).capabilities != {SHADER}:
        asked = "The way without matrices runs on every device."
        saw = "it needs more than a plain compute shader does: matrices, float16_t or subgroups"
        return Finding(asked, saw, Symptom.DEVICE, 1)
    return None


def examine_module(module: bytes, shape: MatrixShape, invocations: int, name: str) -> Finding | None:
    """The kernel with matrices of `shape`, as a module: what is wrong with its workgroup, types, sides or barriers.

    name: how a finding calls it.
    """
    size = spirv.reflect(module).local_size
    if size != (invocations, 1, 1):
        asked = "A workgroup is two subgroups of the device, whatever their size."
        return Finding(asked, f"{name}: its local size is {size}", Symptom.INTERFACE, 1)
    found = list(instructions(module))
    if not any(opcode == OP_MATRIX_MUL_ADD for opcode, _ in found):
        return Finding("Matrices are multiplied whole.", f"{name}: no coopMatMulAdd", Symptom.INTERFACE, 2)
    for component, scope, sides, use in matrices(found):
        if finding := _examine_matrix(component, scope, sides, use, shape, name):
            return finding
    if barrier_for_some(found):
        asked = "All invocations of a workgroup reach each barrier."
        saw = f"{name}: one stands where an invocation's own number decides who comes"
        return Finding(asked, saw, Symptom.HANGS, 4)
    if not _start_somewhere(found):
        return Finding("The sums start from zero.", f"{name}: they start as they are", Symptom.NONDETERMINISTIC, 2)
    if _read_unguarded(found):
        asked = "What a subgroup stored together is read behind a barrier."
        return Finding(asked, f"{name}: no barrier follows coopMatStore", Symptom.NONDETERMINISTIC, 5)
    return None


def matrices(found: list[Instruction]) -> Iterator[tuple[str, int, tuple[int, int], int]]:
    """(component as `f16`, scope, (rows, columns), use) of each matrix type of a module."""
    kinds = {OP_TYPE_INT: "i", OP_TYPE_FLOAT: "f"}
    types = {words[0]: f"{kinds[opcode]}{words[1]}" for opcode, words in found if opcode in kinds}
    values = {words[1]: words[2] for opcode, words in found if opcode == OP_CONSTANT}
    for opcode, words in found:
        if opcode == OP_TYPE_MATRIX:
            scope, rows, columns, use = (values.get(word, -1) for word in words[2:6])
            yield types.get(words[1], "another type"), scope, (rows, columns), use


def _examine_matrix(
    component: str, scope: int, sides: tuple[int, int], use: int, shape: MatrixShape, name: str
) -> Finding | None:
    role = USES[use] if 0 <= use < len(USES) else "another use"
    if scope != SUBGROUP:
        asked = "The shape is one of a subgroup, and so is each matrix."
        return Finding(asked, f"{name}: the matrix of {role} is {_scope(scope)}", Symptom.SHAPE, 2)
    wanted = ("f16", "f16", "f32")[use]
    if component != wanted:
        asked = "Inputs may be narrow, the sums are wide: fp16 and fp16 to fp32."
        return Finding(asked, f"{name}: the matrix of {role} is {component}", Symptom.DTYPE, 2)
    expected = ((shape.m, shape.k), (shape.k, shape.n), (shape.m, shape.n))[use]
    if sides != expected:
        asked = "The sides of each matrix are those of the shape that was asked for."
        saw = f"{name}: the matrix of {role} is {sides[0]} × {sides[1]}"
        return Finding(asked, saw, Symptom.SHAPE, 2)
    return None


def _scope(scope: int) -> str:
    return SCOPES[scope] if 0 <= scope < len(SCOPES) else f"of scope {scope}"


def _start_somewhere(found: list[Instruction]) -> bool:
    """Whether a value is ever given to the matrices that products are added to, besides by adding."""
    sums = {words[0] for opcode, words in found if opcode == OP_MATRIX_MUL_ADD}
    return any(opcode in GIVE_VALUES and words[0] in sums for opcode, words in found)


def _read_unguarded(found: list[Instruction]) -> bool:
    """Whether no barrier comes after the last matrix store in its function, nor a call of a function with one."""
    functions = list(_functions(found))
    waiting = {name for name, body in functions if any(opcode == OP_BARRIER for opcode, _ in body)}
    for _, body in functions:
        stores = [place for place, (opcode, _) in enumerate(body) if opcode == OP_MATRIX_STORE]
        rest = body[stores[-1] :] if stores else ()
        waits = any(opcode == OP_BARRIER or (opcode == OP_CALL and words[2] in waiting) for opcode, words in rest)
        if stores and not waits:
            return True
    return False


def _functions(found: list[Instruction]) -> Iterator[tuple[int, list]]:
    """(id, instructions) of each function of a module."""
    starts = [place for place, (opcode, _) in enumerate(found) if opcode == OP_FUNCTION]
    for start, end in zip(starts, (*starts[1:], len(found))):
        yield found[start][1][1], found[start:end]
