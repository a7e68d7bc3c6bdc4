"""The exercise of the int4 lab: a product of packed 4-bit weights with a vector, and how a shader is examined."""

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from helpers.course.exercise import Exercise, Finding, Symptom
from helpers.edge import bounds, spirv
from helpers.edge.kernels import Quantised, quantise
from helpers.edge.vulkan import Device, DeviceLost, Kernel, VulkanError, open_device, why_none

SIDE = 64  # invocations of a workgroup, a row each
PER_WORD, GROUP = 8, 32  # values in a word, and values that share a scale
DEADLINE_S = 10.0
GUARD = np.float32(-77.0)  # what y holds before, and where nothing is stored
COUNTS = 5
COUNTED = """#version 450
layout(set = 0, binding = 0) readonly buffer Words_ { uint words_[]; };
layout(set = 0, binding = 1) readonly buffer Scales_ { uint scales_[]; };
layout(set = 0, binding = 2) readonly buffer X_ { float x_[]; };
layout(set = 0, binding = 3) writeonly buffer Y_ { float y_[]; };
layout(set = 0, binding = 4) buffer Seen_ {
    uint word_loads_; uint scale_loads_; uint outside_; uint stores_; uint beyond_;
};
layout(push_constant) uniform Sizes { uint rows; uint k; };
uint load_word(uint word, uint row) {
    atomicAdd(word_loads_, 1u);
    if (row < rows && word < (k + 31) / 32 * 4) return words_[word * rows + row];
    atomicAdd(outside_, 1u);
    return 0u;
}
uint load_scale(uint group, uint row) {
    atomicAdd(scale_loads_, 1u);
    if (row < rows && group < (k + 31) / 32) return scales_[group * rows + row];
    atomicAdd(outside_, 1u);
    return 0u;
}
float load_x(uint i) {
    if (i < k) return x_[i];
    atomicAdd(outside_, 1u);
    return 0.0;
}
void store_y(uint row, float value) {
    atomicAdd(stores_, 1u);
    if (row < rows) y_[row] = value;
    else atomicAdd(beyond_, 1u);
}
#line 1
"""


@dataclass(frozen=True)
class _Seen:
    """One product. weights: as they went in. x (k,), y (rows,), and what the shader did."""

    weights: Quantised
    x: np.ndarray
    y: np.ndarray
    word_loads: int
    scale_loads: int
    outside: int
    stores: int
    beyond: int

    @property
    def size(self) -> str:
        return f"W {self.weights.rows} × {self.weights.k}"


def examine_matvec(answer: Callable[[], str], seed: int) -> Finding | None:
    """The first way in which the GLSL of `answer()` is not the product of 4-bit weights with a vector.

    The shader reads and writes through functions that count, so that a word that is read again shows.
    """
    source = answer()
    if not isinstance(source, str):
        return Finding("The answer is the text of a shader.", f"a {type(source).__name__} came back", Symptom.TYPE, 1)
    try:
        module = spirv.compile_glsl(COUNTED + source)
    except spirv.CompileError as error:
        saw = f"{error.what.strip()} at {error.where.partition(':')[0]}"
        return Finding("The shader compiles.", saw, Symptom.DOES_NOT_COMPILE, 1)
    size = spirv.reflect(module).local_size
    if size != (SIDE, 1, 1):
        return Finding(f"A workgroup has {SIDE} invocations.", f"its local size is {size}", Symptom.INTERFACE, 1)
    with open_device() as device:
        device.deadline_s = DEADLINE_S
        try:
            return _examine_kernel(device.kernel(module), device, random.Random(seed))
        except DeviceLost:
            saw = f"the device was not done after {DEADLINE_S:g} s"
            return Finding("Every invocation comes to an end.", saw, Symptom.HANGS, 2)
        except VulkanError as error:
            return Finding("The device takes the shader.", str(error), Symptom.INVALID_USE, 1)


def _examine_kernel(kernel: Kernel, device: Device, draw: random.Random) -> Finding | None:
    """Whole groups and workgroups first, then tails."""
    tails = [(1, 1), (5, 7), (SIDE + 6, GROUP + 13), (draw.randint(2, 150), draw.randint(2, 300))]
    for shape in [(SIDE, GROUP), (2 * SIDE, 3 * GROUP), *tails]:
        seen = _multiply(kernel, device, shape, draw.randrange(2**32))
        if finding := _examine_place(seen) or _examine_values(seen) or _examine_traffic(seen):
            return finding
        if messages := device.take_messages():
            return Finding("The validation layer is silent.", str(messages[0]), Symptom.INVALID_USE, 1)
    return None


def _multiply(kernel: Kernel, device: Device, shape: tuple[int, int], seed: int) -> _Seen:
    numbers = np.random.default_rng(seed)
    rows, k = shape
    weights = quantise(numbers.uniform(-1.0, 2.0, shape), 4, GROUP)
    x = numbers.uniform(0.5, 2.0, k).astype(np.float32)
    arrays = (weights.words, weights.scales, x, np.full(rows, GUARD))
    buffers = [*map(device.upload, arrays), device.buffer(COUNTS, "uint32")]
    kernel.run((-(-rows // SIDE),), buffers, struct.pack("<2I", rows, k))
    y, counts = buffers[3].read(), buffers[4].read()
    for buffer in buffers:
        buffer.free()
    return _Seen(weights, x, y, *map(int, counts))


def _examine_place(seen: _Seen) -> Finding | None:
    if seen.beyond:
        saw = f"{seen.size}: {seen.beyond} stores outside of y"
        return Finding("Nothing is stored outside of y.", saw, Symptom.OUT_OF_BOUNDS, 2)
    if seen.outside:
        saw = f"{seen.size}: {seen.outside} loads outside of W or x"
        return Finding("Nothing is loaded from outside of W and x.", saw, Symptom.OUT_OF_BOUNDS, 2)
    return None


def _examine_values(seen: _Seen) -> Finding | None:
    if not np.isfinite(seen.y).all():
        return Finding("Finite weights give finite sums.", f"{seen.size}: y has NaN or infinity", Symptom.NAN, 3)
    values = seen.weights.values()
    truth = values @ seen.x.astype(np.float64)
    wrong = np.flatnonzero(np.abs(seen.y - truth) > bounds.dequant_matvec_bound(_terms(seen.weights), seen.x))
    if not wrong.size:
        return None
    saw = f"{seen.size}: {wrong.size} sums are wrong, the first is row {wrong[0]}; "
    saw += f"largest error {np.abs(seen.y - truth).max():.2g}"
    if wrong.size == truth.size > 1 and np.ptp(seen.y / truth) < 1e-4:
        return Finding("y = W·x.", saw, Symptom.CONSTANT_FACTOR, 3)
    if seen.weights.rows % SIDE or seen.weights.k % GROUP:
        return Finding("Rows of every length are right.", saw, Symptom.TAIL, 2)
    return Finding("A weight is scale · (q - zero), eight to a word.", saw, Symptom.VALUE, 3)


def _terms(weights: Quantised) -> np.ndarray:
    """|scale| · (|q - zero| + 2 · zero): the bound then holds too where q and zero are summed apart."""
    halves = weights.scales.T.copy().view(np.float16).reshape(weights.rows, -1, 2).astype(np.float64)
    offsets = np.repeat(np.abs(2 * halves[..., 0] * halves[..., 1]), GROUP, axis=1)[:, : weights.k]
    return np.abs(weights.values()) + offsets


def _examine_traffic(seen: _Seen) -> Finding | None:
    words, scales = seen.weights.words.size, seen.weights.scales.size
    if not seen.word_loads or not seen.scale_loads:
        saw = f"{seen.size}: {seen.word_loads} words and {seen.scale_loads} scales were loaded"
        return Finding("W is read through load_word and load_scale.", saw, Symptom.INTERFACE, 1)
    if seen.word_loads > words:
        saw = f"{seen.size}: {seen.word_loads} loads of {words} words"
        return Finding("Each word is loaded once.", saw, Symptom.TRAFFIC, 4)
    if seen.scale_loads > scales:
        saw = f"{seen.size}: {seen.scale_loads} loads of {scales} scales"
        return Finding("Each scale is loaded once.", saw, Symptom.TRAFFIC, 4)
    if seen.stores > seen.weights.rows:
        saw = f"{seen.size}: {seen.stores} stores of {seen.weights.rows} sums"
        return Finding("Each sum is stored once.", saw, Symptom.REPEATED, 4)
    return None


EXERCISES = (
    Exercise(
        id="edge.5",
        title="Four bits a weight",
        hints=(
            "Start with layout(local_size_x = 64) in; and write main(). gl_GlobalInvocationID.x is the row. rows, k, "
            "load_word(word, row), load_scale(group, row), load_x(i) and store_y(row, value) are there.",
            "An invocation whose row does not exist returns before it loads. The last group of a row may be cut: "
            "its words are there, filled with zero bits, but x ends at k, and a zero bit is not a zero weight.",
            "The first value lies in the lowest four bits: shift right by four times its place, and keep four bits. "
            "unpackHalf2x16 gives the scale in .x and the zero in .y. Take the zero off, then multiply.",
            "Three loops: the groups of a row, the words of a group, the values of a word. Load the scale in the "
            "first and the word in the second, into a variable. One sum lives through all of them; store it last.",
        ),
        examine=examine_matvec,
        unavailable=lambda: why_none() or None,
    ),
)
