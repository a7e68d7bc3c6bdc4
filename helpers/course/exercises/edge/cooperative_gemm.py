"""The device's half of the matrix lab: a product on cooperative matrices in GLSL, and how it is examined."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache

from helpers.course.exercise import Exercise, Finding, NotRun, Symptom
from helpers.course.exercises.edge.gemm_trial import GemmKernel, Place, here, places, run_trial, why_not_here
from helpers.course.exercises.edge.matrix_module import examine_module, examine_plain
from helpers.edge import spirv
from helpers.edge.vulkan import MatrixShape, why_none

SUBGROUPS = 2  # of a workgroup, a tile of C each, side by side
PLAIN_SIDE = 8  # invocations of a workgroup each way, without matrices
ELSEWHERE = (MatrixShape(16, 8, 32, "f16", "f32"), 32)  # a shape and lanes that no CPU driver lists
UNEVEN = MatrixShape(16, 8, 24, "f16", "f32")  # lavapipe lists it not, and copes: no two of its sides are equal
COUNTED = """#version 450
#extension GL_KHR_shader_subgroup_basic : enable
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : enable
#extension GL_KHR_memory_scope_semantics : enable
#extension GL_KHR_cooperative_matrix : enable
layout(set = 0, binding = 0) readonly buffer A_ { uint a_[]; };
layout(set = 0, binding = 1) readonly buffer B_ { uint b_[]; };
layout(set = 0, binding = 2) writeonly buffer C_ { float c_[]; };
layout(set = 0, binding = 3) buffer Seen_ { uint loads_; uint outside_; uint stores_; uint beyond_; };
layout(push_constant) uniform Sizes { uint m; uint n; uint k; };
float load_a(uint row, uint i) {
    atomicAdd(loads_, 1u);
    uint at = row * k + i;
    if (row < m && i < k) return unpackHalf2x16(a_[at / 2])[at % 2];
    atomicAdd(outside_, 1u);
    return 0.0;
}
float load_b(uint i, uint column) {
    atomicAdd(loads_, 1u);
    uint at = i * n + column;
    if (i < k && column < n) return unpackHalf2x16(b_[at / 2])[at % 2];
    atomicAdd(outside_, 1u);
    return 0.0;
}
void store_c(uint row, uint column, float value) {
    atomicAdd(stores_, 1u);
    if (row < m && column < n) c_[row * n + column] = value;
    else atomicAdd(beyond_, 1u);
}
#line 1
"""


def examine_gemm(answer: "Callable[[MatrixShape | None, int], str]", seed: int) -> Finding | None:
    """The first way in which the GLSL of `answer(shape, lanes)` is not that product, for a shape and for None.

    What a module says of itself is read from it, for a shape of another device too. Then it runs in a child, for
    a wrong shader may end the driver. Raises `NotRun` where no device has matrices, and the rest is right.
    """
    able = tuple(places())
    try:
        plain = _read_plain(answer)
        _read(answer, *ELSEWHERE)
        for place in able or (here(),):
            if finding := run_trial([plain, *_read_for(answer, place)], place, seed):
                return finding
    except _Wrong as wrong:
        return wrong.finding
    if not able:
        raise NotRun(why_not_here())
    return None


class _Wrong(Exception):
    """Ends the reading of the texts, with what was found."""

    def __init__(self, finding: Finding):
        self.finding = finding


def _read_plain(answer: Callable) -> GemmKernel:
    module = _compile(answer(None, 8), "without matrices", hint=1)
    if finding := examine_plain(module, PLAIN_SIDE):
        raise _Wrong(finding)
    return GemmKernel("without matrices", module, (PLAIN_SIDE, PLAIN_SIDE), PLAIN_SIDE, matrices=False)


def _read_for(answer: Callable, place: Place) -> Iterator[GemmKernel]:
    """For the shape of a place, if it has one, and for one that lavapipe copes with."""
    if place.shape:
        yield _read(answer, place.shape, place.lanes)
    if place.driver.name == "lavapipe-newer":
        yield replace(_read(answer, UNEVEN, place.lanes), listed=False)


def _read(answer: Callable, shape: MatrixShape, lanes: int) -> GemmKernel:
    """Compiled, and as its module says; `_Wrong` where that is not what was asked for."""
    name = f"{shape}, {lanes} lanes"
    module = _compile(answer(shape, lanes), name)
    if finding := examine_module(module, shape, SUBGROUPS * lanes, name):
        raise _Wrong(finding)
    return GemmKernel(name, module, (shape.m, SUBGROUPS * shape.n), shape.k)


def _compile(source: str, name: str, hint: int = 2) -> bytes:
    if not isinstance(source, str):
        saw = f"{name}: a {type(source).__name__} came back"
        raise _Wrong(Finding("The answer is the text of a shader, for a shape and for None.", saw, Symptom.TYPE, 1))
    try:
        return _compiled(COUNTED + source)
    except spirv.CompileError as error:
        saw = f"{name}: {' '.join(error.what.split())} at {error.where.partition(':')[0] or 'no line'}"
        raise _Wrong(Finding("The shader compiles.", saw, Symptom.DOES_NOT_COMPILE, hint)) from None


_compiled = lru_cache(64)(spirv.compile_glsl)


EXERCISES = (
    Exercise(
        id="edge.7",
        title="A product on matrices, or without",
        hints=(
            "Return two texts. Without matrices: layout(local_size_x = 8, local_size_y = 8) in; and one element "
            "of C for each invocation, row gl_GlobalInvocationID.y; an invocation without an element loads and "
            "stores nothing. With them: layout(local_size_x = …) in; with the number that 2 · lanes is, and the "
            "sides of the shape, written into the text by Python. m, n, k, load_a, load_b and store_c are there "
            "for both.",
            "Three matrix variables: coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA>, the same with K, "
            "N and gl_MatrixUseB, and coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> for the "
            "sums, which start as coopmat<…>(0.0). sums = coopMatMulAdd(rows, columns, sums) is a step along K. "
            "What is loaded from or stored to is a shared array of one dimension, of the matrix's own type: a "
            "load converts nothing, and float16_t(x) does.",
            "In a step, all invocations bring M × K elements of A and K × 2N of B into shared arrays of "
            "float16_t, invocation i the elements i, i + 2 · lanes, and so on: a row of A's tile is K long, one "
            "of B's 2N. Wait. Each subgroup loads A's tile, and its own half of B's, from gl_SubgroupID · N on. "
            "Wait again before the next step brings.",
            "What lies outside of A or B is not loaded: the shared tile gets a zero there, in rows, in columns "
            "and along K. No invocation leaves early, for the barriers and the matrices belong to all.",
            "A matrix cannot be stored through store_c. Give it to a shared array of float with coopMatStore, "
            "each subgroup its own half; wait; then each invocation stores several elements, those that exist, "
            "once.",
        ),
        examine=examine_gemm,
        unavailable=lambda: why_none() or None,
    ),
)
