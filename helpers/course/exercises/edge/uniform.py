"""Barriers that only some invocations reach, found in a SPIR-V module: a CPU driver copes, a GPU may hang.

A value varies if it comes from an invocation's own number. Where one chooses the branch, the invocations part until
the construct ends, and structured control flow says where. What a barrier in a called function does is seen, a value
that varies because a function returns it without an argument that does is not.
"""

from collections.abc import Iterator

from helpers.edge.spirv import Instruction

# Opcodes, decorations and built-ins from the SPIR-V specification, section 3.
OP_EXT_INST, OP_FUNCTION, OP_PARAMETER, OP_CALL, OP_LOAD, OP_STORE = 12, 54, 55, 57, 61, 62
OP_ACCESS_CHAIN, OP_IN_BOUNDS_ACCESS_CHAIN, OP_DECORATE, OP_EXTRACT, OP_BARRIER, OP_PHI = 65, 66, 71, 81, 224, 245
OP_LOOP_MERGE, OP_SELECTION_MERGE, OP_LABEL = 246, 247, 248
OP_BRANCH, OP_BRANCH_CONDITIONAL, OP_SWITCH = 249, 250, 251
BUILT_IN, OWN_NUMBERS = 11, {27, 28, 29, 40, 41}  # ids, local and global, local index, subgroup, lane
CHAINS = {OP_ACCESS_CHAIN, OP_IN_BOUNDS_ACCESS_CHAIN}
COMPUTED = {OP_CALL, OP_PHI, *CHAINS, *range(77, OP_BARRIER)}  # a result from all operands behind it


def barrier_for_some(found: list[Instruction]) -> bool:
    """Whether a barrier, or a call of a function with one, stands where the invocations have parted."""
    waiting, inside = _waiting(found), set()
    for start, end in _parted(found, _varying(found)):
        inside |= set(range(start, end))
    return any(
        found[place][0] == OP_BARRIER or (found[place][0] == OP_CALL and found[place][1][2] in waiting)
        for place in inside
    )


def _varying(found: list[Instruction]) -> set[int]:
    """The ids of values, and of variables that hold such, that may differ within a workgroup."""
    names = {w[0] for opcode, w in found if opcode == OP_DECORATE and w[1] == BUILT_IN and w[2] in OWN_NUMBERS}
    roots = {words[1]: words[2] for opcode, words in found if opcode in CHAINS}
    parameters, size = _parameters(found), -1
    while len(names) > size:
        size = len(names)
        for opcode, words in found:
            if opcode == OP_STORE and names & set(words[:2]):
                names.add(roots.get(words[0], words[0]))
            elif opcode == OP_CALL:
                names |= {own for own, given in zip(parameters[words[2]], words[3:]) if given in names}
            if names & set(_inputs(opcode, words)):
                names.add(words[1])
    return names


def _inputs(opcode: int, words: tuple[int, ...]) -> tuple[int, ...]:
    """The ids that an instruction computes its result from; behind them may stand numbers that are no ids."""
    if opcode == OP_EXT_INST:
        return words[4:]
    if opcode in (OP_LOAD, OP_EXTRACT):
        return words[2:3]
    return words[2:] if opcode in COMPUTED else ()


def _parameters(found: list[Instruction]) -> dict[int, list[int]]:
    parameters: dict[int, list[int]] = {}
    for opcode, words in found:
        if opcode == OP_FUNCTION:
            own = parameters.setdefault(words[1], [])
        elif opcode == OP_PARAMETER:
            own.append(words[1])
    return parameters


def _waiting(found: list[Instruction]) -> set[int]:
    """The functions that have a barrier of their own."""
    waiting, function = set(), 0
    for opcode, words in found:
        if opcode == OP_FUNCTION:
            function = words[1]
        elif opcode == OP_BARRIER:
            waiting.add(function)
    return waiting


def _parted(found: list[Instruction], varying: set[int]) -> Iterator[tuple[int, int]]:
    """(first, last) place of each selection by a value that varies, and of each loop that such a value ends."""
    labels = {words[0]: place for place, (opcode, words) in enumerate(found) if opcode == OP_LABEL}
    selections = []
    for place, (opcode, words) in enumerate(found[:-1]):
        follows, chosen = found[place + 1]
        if opcode == OP_SELECTION_MERGE and follows in (OP_BRANCH_CONDITIONAL, OP_SWITCH) and chosen[0] in varying:
            selections.append((place, labels[words[0]]))
    yield from selections
    for place, (opcode, words) in enumerate(found):
        if opcode == OP_LOOP_MERGE:
            start, end, merge = place, labels[words[0]], words[0]
            if any(_leaves(found[at], merge, varying) for at in range(start, end)) or any(
                (OP_BRANCH, (merge,)) in found[first:last] for first, last in selections if start < first < end
            ):
                yield start, end


def _leaves(instruction: Instruction, merge: int, varying: set[int]) -> bool:
    opcode, words = instruction
    return opcode == OP_BRANCH_CONDITIONAL and merge in words[1:3] and words[0] in varying
