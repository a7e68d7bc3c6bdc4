"""The exercise of the softmax lab: a row-wise softmax in one dispatch, examined at every subgroup size to be had."""

import json
import os
import random
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from helpers.course.exercise import Exercise, Finding, Symptom
from helpers.edge import bounds, spirv
from helpers.edge.lanes import LANE_BITS, LANES, UNCACHED, WIDTH_VARIABLE, why_not
from helpers.edge.vulkan import DeviceLost, devices, driver, open_device, why_none
from helpers.edge.vulkan.drivers import Driver

GROUP = 128  # invocations of the workgroup that has a row
READS = 2  # of each value, for all invocations together
DEADLINE_S = 4.0
CHILD_S = 60.0
GUARD = np.float32(-77.0)  # what Y holds before, and where nothing is stored
SPARE_STEPS = 8  # corrections of the sum that a bound allows besides those of the values
EXCHANGES = range(345, 367)  # OpGroupNonUniformShuffle to OpGroupNonUniformQuadSwap
COUNTED = """#version 450
#extension GL_KHR_shader_subgroup_basic : enable
#extension GL_KHR_shader_subgroup_vote : enable
#extension GL_KHR_shader_subgroup_ballot : enable
#extension GL_KHR_shader_subgroup_arithmetic : enable
#extension GL_KHR_shader_subgroup_shuffle : enable
layout(set = 0, binding = 0) readonly buffer X_ { float x_[]; };
layout(set = 0, binding = 1) writeonly buffer Y_ { float y_[]; };
layout(set = 0, binding = 2) buffer Seen_ { uint loads_; uint outside_; uint stores_; uint beyond_; };
layout(push_constant) uniform Sizes { uint rows; uint columns; };
float load_x(uint row, uint column) {
    atomicAdd(loads_, 1u);
    if (row < rows && column < columns) return x_[row * columns + column];
    atomicAdd(outside_, 1u);
    return 0.0;
}
void store_y(uint row, uint column, float value) {
    atomicAdd(stores_, 1u);
    if (row < rows && column < columns) y_[row * columns + column] = value;
    else atomicAdd(beyond_, 1u);
}
#line 1
"""


@dataclass(frozen=True)
class _Place:
    """A driver, the variables that set its number of lanes, and how a finding names it."""

    name: str
    driver: Driver
    variables: dict[str, str]


@dataclass(frozen=True)
class _Seen:
    """One dispatch. x (rows, columns) as it went in; y (rows, columns), and what the shader did."""

    x: np.ndarray
    y: np.ndarray
    loads: int
    outside: int
    stores: int
    beyond: int


def examine_softmax(answer: Callable[[], str], seed: int) -> Finding | None:
    """The first way in which the GLSL of `answer()` is not a softmax of each row, at whatever subgroup size.

    The shader runs in a child for each size, since a driver reads its width once and a wrong shader may end it.
    """
    source = answer()
    if not isinstance(source, str):
        saw = f"a {type(source).__name__} came back"
        return Finding("The answer is the text of a shader.", saw, Symptom.TYPE, 1)
    try:
        module = spirv.compile_glsl(COUNTED + source)
    except spirv.CompileError as error:
        saw = f"{error.what.strip()} at {error.where.partition(':')[0]}"
        return Finding("The shader compiles.", saw, Symptom.DOES_NOT_COMPILE, 1)
    if finding := _examine_module(module):
        return finding
    cases = draw_cases(seed)
    for place in places():
        if finding := _examine_place(module, cases, place):
            return finding
    return None


def places() -> Iterator[_Place]:
    """The device that a page would open, then lavapipe with each number of lanes that it can have here.

    Where that device is lavapipe, it is one of those. Without lavapipe, SwiftShader, which has four lanes.
    """
    widths = [lanes for lanes in LANES if not why_not(lanes)]
    if not widths or not all(device.name.startswith("llvmpipe") for device in devices()):
        yield _Place("this device", Driver("default", None), {})
    for lanes in widths:
        variables = UNCACHED | {WIDTH_VARIABLE: str(lanes * LANE_BITS)}
        yield _Place(f"lavapipe with {lanes} lanes", driver("lavapipe"), variables)
    if not widths and not driver("swiftshader").why_not:
        yield _Place("SwiftShader", driver("swiftshader"), {})


def draw_cases(seed: int) -> list[tuple[bool, np.ndarray]]:
    """Whether all invocations have equally many values, and x (rows, columns) in fp32: the smallest first."""
    draw = np.random.default_rng(seed)
    wild = random.Random(seed)
    shapes = [(1, GROUP), (3, 2 * GROUP), (1, 1), (2, 5), (3, GROUP + 72), (wild.randint(2, 9), wild.randint(2, 900))]
    cases = [(shape[1] % GROUP == 0, draw.standard_normal(shape)) for shape in shapes]
    rising = np.sort(draw.uniform(-30, 30, (2, 3 * GROUP)))
    cases += [(True, rising), (True, rising[:, ::-1])]
    cases += [(True, draw.uniform(-3, 3, (2, GROUP)) + offset) for offset in (200, -2000)]
    return [(whole, np.ascontiguousarray(x, dtype=np.float32)) for whole, x in cases]


def _examine_module(module: bytes) -> Finding | None:
    size = spirv.reflect(module).local_size
    if size != (GROUP, 1, 1):
        return Finding(f"A workgroup has {GROUP} invocations.", f"its local size is {size}", Symptom.INTERFACE, 1)
    if not any(opcode in EXCHANGES for opcode in _opcodes(module)):
        saw = "no subgroup operation is in the module"
        return Finding("The lanes of a subgroup combine their values without a barrier.", saw, Symptom.WAITS, 3)
    return None


def _opcodes(module: bytes) -> Iterator[int]:
    """Each instruction's opcode; SPIR-V specification, "Physical Layout of a SPIR-V Module and Instruction"."""
    words = struct.unpack(f"<{len(module) // 4}I", module)
    at = 5
    while at < len(words):
        yield words[at] & 0xFFFF
        at += words[at] >> 16


def _examine_place(module: bytes, cases: list[tuple[bool, np.ndarray]], place: _Place) -> Finding | None:
    lost = Finding("Every invocation comes to an end.", f"{place.name}: it was not done in time", Symptom.HANGS, 2)
    with tempfile.TemporaryDirectory(prefix="softmax-") as folder:
        try:
            told = _run(module, [x for _, x in cases], place, Path(folder))
        except subprocess.TimeoutExpired:
            return lost
        if told["state"] == "lost":
            return lost
        if told["state"] == "died":
            return Finding("The shader runs.", f"{place.name}: {told['words']}", Symptom.ABORTS, 4)
        lanes = f"{place.name}, {told['lanes']} lanes" if place.driver.name == "default" else place.name
        with np.load(Path(folder, "results.npz")) as results:
            for number, (whole, x) in enumerate(cases):
                seen = _Seen(x, results[f"y{number}"], *map(int, results[f"counts{number}"]))
                if finding := _examine_result(seen, whole, f"{lanes}, {x.shape[0]} × {x.shape[1]}"):
                    return finding
    if told["words"]:
        return Finding("The validation layer is silent.", told["words"], Symptom.INVALID_USE, 1)
    return None


def _run(module: bytes, inputs: list[np.ndarray], place: _Place, folder: Path) -> dict:
    """What the child told: `state` (done, lost, died), `lanes`, and `words` of the validation layer or of its end."""
    arrays = {f"x{number}": x for number, x in enumerate(inputs)}
    np.savez(folder / "inputs.npz", module=np.frombuffer(module, np.uint8), **arrays)
    program = f"from helpers.course.exercises.edge.fused_softmax import run_child; run_child({str(folder)!r})"
    done = place.driver.run(program, CHILD_S, **place.variables)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return {"state": "died", "lanes": 0, "words": f"the child ended with {done.returncode}: {last}"}
    return json.loads(done.stdout.splitlines()[-1])


def run_child(folder: str) -> None:
    """Run each input of a folder and leave the results there; print what happened. It ends this process."""
    told = {"state": "done", "lanes": 0, "words": ""}
    results: dict[str, np.ndarray] = {}
    with np.load(Path(folder, "inputs.npz")) as inputs, open_device() as device:
        told["lanes"] = device.subgroups.counted
        device.deadline_s = DEADLINE_S
        kernel = device.kernel(inputs["module"].tobytes())
        try:
            for number in range(len(inputs.files) - 1):
                x = inputs[f"x{number}"]
                buffers = [device.upload(x), device.upload(np.full(x.shape, GUARD)), device.buffer(4, "uint32")]
                kernel.run((x.shape[0],), buffers, struct.pack("<2I", *x.shape))
                results |= {f"y{number}": buffers[1].read(), f"counts{number}": buffers[2].read()}
        except DeviceLost:
            told["state"] = "lost"
        else:
            told["words"] = "; ".join(map(str, device.take_messages()[:1]))
        np.savez(Path(folder, "results.npz"), **results)
        print(json.dumps(told), flush=True)
        os._exit(0)  # a lost device cannot be taken down


def _examine_result(seen: _Seen, whole: bool, size: str) -> Finding | None:
    if seen.beyond:
        saw = f"{size}: {seen.beyond} stores outside of Y"
        return Finding("Nothing is stored outside of Y.", saw, Symptom.OUT_OF_BOUNDS, 2)
    if seen.outside:
        saw = f"{size}: {seen.outside} loads outside of X"
        return Finding("Nothing is loaded from outside of X.", saw, Symptom.OUT_OF_BOUNDS, 2)
    if finding := _examine_values(seen, whole, size):
        return finding
    if seen.loads < seen.x.size:
        saw = f"{size}: {seen.loads} loads were counted"
        return Finding("X is read through load_x.", saw, Symptom.INTERFACE, 1)
    if seen.loads > READS * seen.x.size:
        saw = f"{size}: {seen.loads} loads of {seen.x.size} values"
        return Finding("Each value is loaded at most twice.", saw, Symptom.TRAFFIC, 5)
    if seen.stores > seen.x.size:
        saw = f"{size}: {seen.stores} stores of {seen.x.size} values"
        return Finding("Each value is stored once.", saw, Symptom.REPEATED, 2)
    return None


def _examine_values(seen: _Seen, whole: bool, size: str) -> Finding | None:
    if not np.isfinite(seen.y).all():
        saw = f"{size}, values from {seen.x.min():.4g} to {seen.x.max():.4g}: Y has NaN or infinity"
        return Finding("Finite values give finite shares.", saw, Symptom.NAN, 3)
    truth = bounds.softmax(seen.x)
    steps = -(-seen.x.shape[1] // GROUP) + SPARE_STEPS
    wrong = np.argwhere(np.abs(seen.y - truth) > bounds.softmax_bound(seen.x, steps))
    if not len(wrong):
        return None
    first = tuple(map(int, wrong[0]))
    saw = f"{size}: {len(wrong)} shares are wrong, the first is {first}; its row adds up to "
    saw += f"{seen.y[first[0]].sum(dtype=float):.6g}"
    if not whole:
        return Finding("Rows of every length are right.", saw, Symptom.TAIL, 2)
    factors = seen.y / np.maximum(truth, bounds.TINY)
    if (np.ptp(factors, axis=1) < 1e-4 * np.abs(factors).max(axis=1)).all():
        return Finding("The shares of a row add up to one, at every subgroup size.", saw, Symptom.CONSTANT_FACTOR, 4)
    return Finding("Each share is exp(x - max) over the row's sum.", saw, Symptom.VALUE, 5)


EXERCISES = (
    Exercise(
        id="edge.4",
        title="A softmax that asks for the lanes",
        hints=(
            "Start with layout(local_size_x = 128) in; and write main(). gl_WorkGroupID.x is the row. rows, columns, "
            "load_x(row, column) and store_y(row, column, value) are there, and so are the subgroup extensions.",
            "Invocation i has the columns i, i + 128, i + 256, … that exist, for loading and for storing. A loop "
            "over them ends by itself. An invocation without a column stays until the last barrier.",
            "An invocation first keeps its own largest value; subgroupMax gives all lanes the largest of them. Start "
            "it with the lowest finite number, not with minus infinity: a difference of two infinities is NaN. Take "
            "the maximum off before exp.",
            "How many subgroups are there? gl_NumSubgroups: up to 32 of the 128 invocations, more than a subgroup "
            "may have lanes. One lane of each, subgroupElect(), writes to shared memory at gl_SubgroupID; after the "
            "barrier each invocation walks over all of them in a loop.",
            "Two readings are enough when each invocation keeps a pair: the largest value so far, and the sum of "
            "exponentials relative to it. Whenever the largest one changes, the sum is multiplied by exp(old - new). "
            "The same correction holds between lanes and between subgroups.",
        ),
        examine=examine_softmax,
        unavailable=lambda: why_none() or None,
    ),
)
