"""The exercise of the ladder lab: two rungs of the matmul ladder, and how shaders for them are examined."""

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from helpers.course.exercise import Exercise, Finding, Symptom
from helpers.edge import bounds, spirv
from helpers.edge.vulkan import Device, DeviceLost, Kernel, VulkanError, open_device, why_none

DEADLINE_S = 10.0
GUARD = np.float32(-77.0)  # what C holds before, and where nothing is stored
COUNTED = """#version 450
layout(set = 0, binding = 0) readonly buffer A_ { float a_[]; };
layout(set = 0, binding = 1) readonly buffer B_ { float b_[]; };
layout(set = 0, binding = 2) writeonly buffer C_ { float c_[]; };
layout(set = 0, binding = 3) buffer Seen_ { uint loads_; uint outside_; uint stores_; uint beyond_; };
layout(push_constant) uniform Sizes { uint m; uint n; uint k; };
float load_a(uint row, uint i) {
    atomicAdd(loads_, 1u);
    if (row < m && i < k) return a_[row * k + i];
    atomicAdd(outside_, 1u);
    return 0.0;
}
float load_b(uint i, uint column) {
    atomicAdd(loads_, 1u);
    if (i < k && column < n) return b_[i * n + column];
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


@dataclass(frozen=True)
class _Rung:
    """What is asked of a rung. side: invocations of a workgroup each way. tile: elements of C each way."""

    name: str
    side: int
    tile: int
    hint: int


RUNGS = (_Rung("shared", 16, 16, 2), _Rung("register", 8, 32, 4))


@dataclass(frozen=True)
class _Seen:
    """One product. a (m, k), b (k, n) as they went in; c (m, n), and what the shader did."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    loads: int
    outside: int
    stores: int
    beyond: int


def examine_climb(answer: Callable[[str], str], seed: int) -> Finding | None:
    """The first way in which the GLSL of `answer(rung)`, for `shared` and then `register`, is not that rung.

    The shader reads and writes through functions that count, so that sharing shows on every device.
    """
    with open_device() as device:
        device.deadline_s = DEADLINE_S
        for rung in RUNGS:
            try:
                finding = _examine_rung(answer(rung.name), rung, device, random.Random(f"{seed} {rung.name}"))
            except DeviceLost:
                saw = f"{rung.name}: the device was not done after {DEADLINE_S:g} s"
                return Finding("Every invocation comes to an end.", saw, Symptom.HANGS, 3)
            if finding:
                return finding
    return None


def _examine_rung(source: str, rung: _Rung, device: Device, draw: random.Random) -> Finding | None:
    if not isinstance(source, str):
        saw = f"climb({rung.name!r}) returned a {type(source).__name__}"
        return Finding("Each rung is the text of a shader.", saw, Symptom.TYPE, 1)
    try:
        module = spirv.compile_glsl(COUNTED + source)
    except spirv.CompileError as error:
        saw = f"{rung.name}: {error.what.strip()} at {error.where}"
        return Finding("The shader compiles.", saw, Symptom.DOES_NOT_COMPILE, 1)
    interface = spirv.reflect(module)
    if interface.local_size != (rung.side, rung.side, 1):
        asked = f"A workgroup of the rung {rung.name} has {rung.side} × {rung.side} invocations."
        return Finding(asked, f"its local size is {interface.local_size}", Symptom.INTERFACE, 1)
    try:
        kernel = device.kernel(module)
    except VulkanError as error:
        return Finding("The device takes the shader.", f"{rung.name}: {error}", Symptom.INVALID_USE, 1)
    return _examine_kernel(kernel, rung, device, draw)


def _examine_kernel(kernel: Kernel, rung: _Rung, device: Device, draw: random.Random) -> Finding | None:
    """Whole tiles first, then tails."""
    whole = [(rung.tile, rung.tile, rung.tile), (2 * rung.tile, 3 * rung.tile, rung.tile)]
    tails = [(1, 1, 1), (5, rung.tile + 3, 7), tuple(draw.randint(2, 70) for _ in range(3))]
    for m, k, n in whole + tails:
        seen = _multiply(kernel, rung, device, (m, k, n), draw.randrange(2**32))
        size = f"{rung.name}, A {m} × {k}, B {k} × {n}"
        if finding := _examine_result(seen, rung, size, (m, k, n) in whole):
            return finding
        if messages := device.take_messages():
            return Finding("The validation layer is silent.", str(messages[0]), Symptom.INVALID_USE, 1)
    return None


def _multiply(kernel: Kernel, rung: _Rung, device: Device, shape: tuple[int, int, int], seed: int) -> _Seen:
    m, k, n = shape
    numbers = np.random.default_rng(seed)
    a, b = (numbers.uniform(0.5, 2.0, size).astype(np.float32) for size in ((m, k), (k, n)))
    buffers = [device.upload(a), device.upload(b), device.upload(np.full((m, n), GUARD))]
    buffers.append(device.buffer(4, "uint32"))
    kernel.run((-(-n // rung.tile), -(-m // rung.tile)), buffers, struct.pack("<3I", m, n, k))
    c, counts = buffers[2].read(), buffers[3].read()
    for buffer in buffers:
        buffer.free()
    return _Seen(a, b, c, *map(int, counts))


def _examine_result(seen: _Seen, rung: _Rung, size: str, whole: bool) -> Finding | None:
    (m, k), n = seen.a.shape, seen.b.shape[1]
    if seen.beyond:
        saw = f"{size}: {seen.beyond} stores outside of C"
        return Finding("Nothing is stored outside of C.", saw, Symptom.OUT_OF_BOUNDS, 3)
    if seen.outside:
        saw = f"{size}: {seen.outside} loads outside of A or B"
        return Finding("Nothing is loaded from outside of A and B.", saw, Symptom.OUT_OF_BOUNDS, 3)
    if finding := _examine_values(seen, rung, size, whole):
        return finding
    if seen.loads < m * k + k * n:
        saw = f"{size}: {seen.loads} loads were counted"
        return Finding("A and B are read through load_a and load_b.", saw, Symptom.INTERFACE, 1)
    groups = (-(-m // rung.tile), -(-n // rung.tile))
    if seen.loads > m * k * groups[1] + k * n * groups[0]:
        saw = f"{size}: {seen.loads} loads from buffers"
        asked = "A workgroup loads each element of A and B that its tile needs once."
        return Finding(asked, saw, Symptom.TRAFFIC, rung.hint)
    if seen.stores > m * n:
        saw = f"{size}: {seen.stores} stores for {m * n} elements"
        return Finding("Each element of C is stored once.", saw, Symptom.REPEATED, rung.hint)
    return None


def _examine_values(seen: _Seen, rung: _Rung, size: str, whole: bool) -> Finding | None:
    if not np.isfinite(seen.c).all():
        return Finding("Finite inputs give finite results.", f"{size}: C has NaN or infinity", Symptom.NAN, 2)
    truth = seen.a.astype(np.float64) @ seen.b
    wrong = np.argwhere(np.abs(seen.c - truth) > bounds.dot_bound(seen.a, seen.b))
    if not len(wrong):
        return None
    first = tuple(map(int, wrong[0]))
    worst = np.abs(seen.c - truth).max()
    saw = f"{size}: {len(wrong)} elements are wrong, the first is {first}; largest error {worst:.2g}"
    if len(wrong) == truth.size > 1 and np.ptp(seen.c / truth) < 1e-5:
        return Finding("C = A·B.", saw, Symptom.CONSTANT_FACTOR, 3)
    if not whole:
        return Finding("Tiles that are not whole give right results too.", saw, Symptom.TAIL, 3)
    return Finding("C = A·B in every element.", saw, Symptom.VALUE, rung.hint)


EXERCISES = (
    Exercise(
        id="edge.3",
        title="Climb two rungs",
        hints=(
            "Start the text with layout(local_size_x = …, local_size_y = …) in; and use load_a(row, i), "
            "load_b(i, column) and store_c(row, column, value) for every access to a buffer. m, n and k are there.",
            "All invocations bring one tile of A and one of B into shared arrays, then all read them. Between the "
            "two everybody must wait, and once more before the next tile overwrites what others still read.",
            "At the edges a tile is not whole. An invocation without an element still has to reach every barrier, "
            "and what it brings for an element that does not exist has to add nothing. It must not load it either.",
            "In the rung register 64 invocations bring 32 rows of A: each brings several elements, in steps of 64. "
            "Each keeps 4 × 4 sums of its own, for rows and columns that are 8 apart.",
        ),
        examine=examine_climb,
        unavailable=lambda: why_none() or None,
    ),
)
