"""The exercises of the edge track, and how an answer to each is examined."""

import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from helpers.course.exercise import Exercise, Finding, Symptom
from helpers.edge import spirv
from helpers.edge.vulkan import Device, Kernel, VulkanError, open_device, why_none

GUARD = 64
PUSH_BYTES = 8
UNIT_ROUNDOFF = 2.0**-24  # of fp32


@dataclass(frozen=True)
class Case:
    """One dispatch: `n` elements, alpha (which fp32 holds), x and y with `GUARD` elements behind the end."""

    n: int
    alpha: float
    x: np.ndarray
    y: np.ndarray

    @property
    def truth(self) -> np.ndarray:
        """alpha·x + y in float64, n elements."""
        return self.alpha * self.x[: self.n].astype(np.float64) + self.y[: self.n]

    @property
    def bound(self) -> np.ndarray:
        """How far fp32 may be off: two roundings, one of the product and one of the sum."""
        return (
            2.01
            * UNIT_ROUNDOFF
            * (np.abs(self.alpha * self.x[: self.n].astype(np.float64)) + np.abs(self.y[: self.n]))
        )


def examine_saxpy(answer: Callable[[], str], seed: int) -> Finding | None:
    """The first way in which the GLSL that `answer()` returns is not SAXPY.

    It is compiled, its interface read, and dispatched under the validation layer, on a device that
    drops what a shader writes outside of its buffers.
    """
    source = answer()
    if not isinstance(source, str):
        saw = f"saxpy() returned a {type(source).__name__}"
        return Finding("The answer is the text of a shader.", saw, Symptom.TYPE, 1)
    try:
        module = spirv.compile_glsl(source)
    except spirv.CompileError as error:
        saw = f"{error.what.strip()} at {error.where}"
        return Finding("The shader compiles.", saw, Symptom.DOES_NOT_COMPILE, 1)
    if finding := _examine_interface(spirv.reflect(module)):
        return finding
    with open_device() as device:
        return _examine_on(device, module, seed)


def _examine_interface(interface: spirv.Interface) -> Finding | None:
    if interface.bindings != (0, 1):
        saw = f"it uses the bindings {interface.bindings}"
        return Finding("x is binding 0 and y is binding 1.", saw, Symptom.INTERFACE, 1)
    if interface.push_bytes != PUSH_BYTES:
        saw = f"its push constants have {interface.push_bytes} bytes"
        return Finding("The push constants are a uint n and a float alpha, 8 bytes.", saw, Symptom.INTERFACE, 1)
    return None


def _examine_on(device: Device, module: bytes, seed: int) -> Finding | None:
    try:
        kernel = device.kernel(module)
    except VulkanError as error:
        return Finding("The device takes the shader.", str(error), Symptom.INVALID_USE, 1)
    for case in _cases(seed, kernel.interface.local_size[0]):
        x, y = _dispatch(device, kernel, case)
        finding = _examine_result(case, x, y, kernel.interface.local_size[0])
        messages = device.take_messages()
        if finding is None and messages:
            finding = Finding("The validation layer is silent.", str(messages[0]), Symptom.INVALID_USE, 1)
        if finding:
            return finding
    return None


def _cases(seed: int, local: int) -> Iterator[Case]:
    """Whole workgroups first, then a tail; the sizes follow the shader's own workgroup."""
    draw = random.Random(seed)
    for n in (2 * local, 1, local + 1, 3 * local - 1, draw.randint(1, 1000), draw.randint(1, 1000)):
        numbers = np.random.default_rng(draw.randrange(2**32))
        x, y = numbers.uniform(0.5, 2.0, (2, n + GUARD)).astype(np.float32)
        yield Case(n, float(np.float32(draw.uniform(1.5, 3.0))), x, y)


def _dispatch(device: Device, kernel: Kernel, case: Case) -> tuple[np.ndarray, np.ndarray]:
    """x and y after the shader ran, guards included."""
    x, y = device.upload(case.x), device.upload(case.y)
    groups = -(-case.n // kernel.interface.local_size[0])
    kernel.run((groups,), [x, y], struct.pack("<If", case.n, case.alpha))
    after = x.array().copy(), y.array().copy()
    x.free()
    y.free()
    return after


def _examine_result(case: Case, x: np.ndarray, y: np.ndarray, local: int) -> Finding | None:
    size = f"n = {case.n} with workgroups of {local}"
    beyond = np.flatnonzero(y[case.n :] != case.y[case.n :])
    if not np.array_equal(x, case.x):
        return Finding("x is only read.", f"{size}: x changed", Symptom.INPUT_CHANGED, 2)
    if not np.isfinite(y[: case.n]).all():
        return Finding("Finite inputs give finite results.", f"{size}: y has NaN or infinity", Symptom.NAN, 2)
    wrong = np.flatnonzero(np.abs(y[: case.n] - case.truth) > case.bound)
    if wrong.size:
        return _explain_wrong(case, y[: case.n], wrong, size, local)
    if beyond.size:
        saw = f"{size}: element {case.n + beyond[0]} changed"
        return Finding("Nothing behind element n - 1 is written.", saw, Symptom.OUT_OF_BOUNDS, 3)
    return None


def _explain_wrong(case: Case, got: np.ndarray, wrong: np.ndarray, size: str, local: int) -> Finding:
    worst = np.max(np.abs(got - case.truth))
    saw = f"{size}: {wrong.size} of {case.n} elements are wrong, the first is {wrong[0]}; largest error {worst:.2g}"
    ratio = got / case.truth
    if wrong.size == case.n > 1 and np.ptp(ratio) < 1e-5:
        return Finding("y = alpha·x + y.", saw, Symptom.CONSTANT_FACTOR, 2)
    if _is_neighbour(case, got):
        return Finding("Element i of y needs element i of x.", saw, Symptom.OFF_BY_ONE, 2)
    if wrong[0] >= case.n - case.n % local:  # whole workgroups were right: they came first
        return Finding("The last, partly used workgroup does its part too.", saw, Symptom.TAIL, 3)
    return Finding("y = alpha·x + y in every element.", saw, Symptom.VALUE, 2)


def _is_neighbour(case: Case, got: np.ndarray) -> bool:
    """Whether each element was made from x one place further on."""
    n = case.n
    shifted = case.alpha * case.x[1 : n + 1].astype(np.float64) + case.y[:n]
    return n > 1 and bool(np.allclose(got, shifted, rtol=1e-6))


EXERCISES = (
    Exercise(
        id="edge.1",
        title="SAXPY with a tail",
        hints=(
            "Declare what you are given: layout(set = 0, binding = 0) readonly buffer …, binding 1 for y, and a "
            "push_constant block with uint n and then float alpha. The workgroup's size is yours: local_size_x.",
            "Each invocation does one element. gl_GlobalInvocationID.x counts over all workgroups; "
            "gl_LocalInvocationID.x starts again in each.",
            "Workgroups come whole. When they do not divide n, the last one has invocations with i >= n: they must "
            "do nothing, and all others must work.",
        ),
        examine=examine_saxpy,
        unavailable=lambda: why_none() or None,
    ),
)
