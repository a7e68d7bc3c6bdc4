"""Cooperative matrix as a capability: what a device lists, what was chosen, what runs instead, and how it breaks.

The extension says which shapes and types a device multiplies, not that it does so faster: a driver may emulate
it. A program asks, takes a shape that is listed, and keeps another way for every device that lists none.
"""

import json
import struct
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from helpers.edge import bounds, shaders
from helpers.edge.kernels import CooperativeMatmul, Matmul, Rung, Saxpy, cooperative_shapes, why_no_cooperative
from helpers.edge.vulkan import Check, MatrixShape, NoVulkan
from helpers.errors import CourseError

if TYPE_CHECKING:
    from helpers.edge.vulkan import Device, DeviceInfo, Driver, Message

RESULTS = {"f16": "f32", "s8": "s32"}
INPUTS = {"float16": "f16", "int8": "s8"}  # of NumPy
EXACT_STEPS = 1024  # products of int8 that fp32 adds without a rounding: 1024 · 2⁷ · 2⁷ = 2²⁴
TRIED, SIZE = (16, 16, 16), 32
COPIES = 2.0


class CooperativeError(CourseError):
    """Matrices that are not fp16 or int8, or a device that cannot show what was asked of it."""


@dataclass(frozen=True)
class Choice:
    """Which shape multiplies `inputs`: `f16` to fp32, or `s8` to int32. shape: None where there is none.

    reason: why there is none, or "".
    """

    inputs: str
    shape: MatrixShape | None
    reason: str = ""


@dataclass(frozen=True)
class Product:
    """C (m, n) = A·B.

    rung: `cooperative` or `tiled`. shape: of the matrices, or None. reason: why it was not cooperative.
    """

    c: np.ndarray
    rung: str
    shape: MatrixShape | None
    reason: str


class Way(StrEnum):
    """How to break it."""

    SHAPE = "shape"
    LOCAL_SIZE = "local size"
    BARRIER = "barrier"


@dataclass(frozen=True)
class Broken:
    """What became of a broken product.

    way: how it was broken. rule: the rule that the validation layer names. said: its message, without the quote
    from the specification. wrong: elements of the result that are outside of the bound, of `elements`: what
    a program without the layer would have to notice.
    """

    way: str
    rule: str
    said: str
    wrong: int
    elements: int


@dataclass(frozen=True)
class Observation:
    """What one driver showed. shapes: all that it lists. error: of each kind of inputs, in units of its bound."""

    device: str
    driver: str
    subgroup: int
    shapes: tuple[str, ...]
    error: dict[str, float]
    broken: tuple[Broken, ...]
    messages: tuple[str, ...]


def choose(info: "DeviceInfo", inputs: str) -> Choice:
    """The shape that a device multiplies with the most work a load, among those that keep 32 bits of the sum.

    Raises `CooperativeError` for other inputs than `f16` and `s8`.
    """
    if inputs not in RESULTS:
        raise CooperativeError(f"matrices of {inputs}", mend=f"use {' or '.join(RESULTS)}")
    if reason := why_no_cooperative(info, inputs):
        return Choice(inputs, None, reason)
    return Choice(inputs, max(cooperative_shapes(info, inputs), key=_reuse))


def multiply(device: "Device", a: np.ndarray, b: np.ndarray) -> Product:
    """A (m, k) · B (k, n), both fp16 to fp32 or both int8 to int32, on matrix units where the device has them.

    Elsewhere the tiled rung does it in fp32, and gives the same: products of fp16 are exact in fp32, and int8 is
    added up in pieces of K that are exact. Raises `CooperativeError` for other dtypes or shapes.
    """
    inputs = INPUTS.get(a.dtype.name, a.dtype.name)
    if a.dtype != b.dtype or inputs not in RESULTS or a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise CooperativeError(
            f"{a.dtype} {a.shape} times {b.dtype} {b.shape}", mend="use (m, k) and (k, n), both float16 or both int8"
        )
    choice = choose(device.info, inputs)
    if choice.shape is None:
        return Product(_tiled(device, a, b), Rung.TILED.value, None, choice.reason)
    c = device.buffer((a.shape[0], b.shape[1]), np.float32 if inputs == "f16" else np.int32)
    CooperativeMatmul(device, inputs, choice.shape).run(device.upload(a), device.upload(b), c)
    return Product(c.read(), "cooperative", choice.shape, "")


def break_it(device: "Device", way: str) -> Broken:
    """Multiply fp16 matrices in a way that the specification forbids, and hand over what the layer said.

    `shape`: one that the device does not list. `local size`: no multiple of the subgroup. `barrier`: the product
    is read by the next dispatch with none between; that needs a device with `checks=("sync",)`. Do it in a child
    (`observe`), for a driver may crash. Raises `CooperativeError` where the device has no cooperative matrix or
    no validation layer.
    """
    choice = choose(device.info, "f16")
    if choice.shape is None:
        raise CooperativeError(
            f"nothing to break: {choice.reason}", where=device.info.name, mend="use observe(driver)"
        )
    if not device.instance.validation:
        raise CooperativeError("no layer to say it", mend="open the device with validation, and install the layer")
    if Way(way) is Way.BARRIER and (reason := device.checks.get(Check.SYNC, "it was not asked for")):
        raise CooperativeError(f"no check of barriers: {reason}", mend='open_device(checks=("sync",))')
    return _BREAK[Way(way)](device, choice.shape)


def observe(driver: "Driver", seconds: float = 120) -> Observation:
    """Choose, run and break it in a child that loads `driver`, such as `drivers.newer_lavapipe()`.

    Raises `NoVulkan` with the reason where the driver is not here, and `CooperativeError` where the child failed.
    """
    if driver.why_not:
        raise NoVulkan(f"the driver {driver.name} cannot be loaded", mend=driver.why_not)
    done = driver.run("from helpers.edge.cooperative import _child; _child()", seconds)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise CooperativeError(
            f"the child ended with {done.returncode}: {last}", where=driver.name, mend="run it alone"
        )
    table = json.loads(done.stdout)
    table["broken"] = tuple(Broken(**broken) for broken in table["broken"])
    return Observation(**{**table, **{name: tuple(table[name]) for name in ("shapes", "messages")}})


def _child() -> None:
    from helpers.edge.vulkan import open_device

    with open_device(needs=("cooperative_matrix",), checks=("sync",)) as device:
        error = {inputs: _error(device, inputs) for inputs in RESULTS}
        messages = [str(message) for message in device.take_messages()]
        broken = tuple(break_it(device, way) for way in Way)
        info = device.info
        shapes = tuple(map(str, info.cooperative_matrix))
        found = Observation(info.name, info.driver, info.subgroup_size, shapes, error, broken, tuple(messages))
    print(json.dumps(asdict(found)))


def _error(device: "Device", inputs: str) -> float:
    """Of a product whose sizes divide no tile, against float64 or integers, in units of the bound."""
    a, b = _matrices(inputs, (37, 50, 29))
    bound = bounds.dot_bound(a, b) if inputs == "f16" else 0.0
    return bounds.error_ratio(multiply(device, a, b).c, a.astype(float) @ b.astype(float), bound)


def _matrices(inputs: str, sizes: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    (m, k, n), draw = sizes, np.random.default_rng(0)
    if inputs == "f16":
        return draw.standard_normal((m, k)).astype(np.float16), draw.standard_normal((k, n)).astype(np.float16)
    return draw.integers(-128, 128, (m, k), dtype=np.int8), draw.integers(-128, 128, (k, n), dtype=np.int8)


def _reuse(shape: MatrixShape) -> float:
    """Multiply-adds for each element that is loaded."""
    return shape.m * shape.n * shape.k / (shape.k * (shape.m + shape.n))


def _tiled(device: "Device", a: np.ndarray, b: np.ndarray) -> np.ndarray:
    matmul, exact = Matmul(device, Rung.TILED), a.dtype == np.int8
    step, total = EXACT_STEPS if exact else a.shape[1], 0
    for start in range(0, a.shape[1], step):
        parts = a[:, start : start + step], b[start : start + step]
        c = device.buffer((a.shape[0], b.shape[1]))
        matmul.run(*(device.upload(part.astype(np.float32)) for part in parts), c)
        total = total + (c.array().astype(np.int32) if exact else c.read())
    return total


def _break_shape(device: "Device", shape: MatrixShape) -> Broken:
    return _break_kernel(device, Way.SHAPE, device.info.subgroup_size, TRIED)


def _break_local_size(device: "Device", shape: MatrixShape) -> Broken:
    return _break_kernel(device, Way.LOCAL_SIZE, max(1, device.info.subgroup_size // 2), (shape.m, shape.n, shape.k))


def _break_kernel(device: "Device", way: Way, lanes: int, tile: tuple[int, int, int]) -> Broken:
    """Past `CooperativeMatmul`, which would refuse: the kernel itself, with constants of our own."""
    told = len(device.instance.messages)
    kernel = device.kernel(
        shaders.spirv("matmul_cooperative_f16"), {0: lanes, **dict(enumerate(tile, 1)), 4: 1, 5: 1}
    )
    a, b = _matrices("f16", (SIZE, SIZE, SIZE))
    c = device.buffer((SIZE, SIZE))
    buffers = [device.upload(a), device.upload(b), c]
    kernel.run((-(-SIZE // tile[1]), -(-SIZE // tile[0])), buffers, struct.pack("<3I", SIZE, SIZE, SIZE))
    return _broken(device, way, told, c.read(), a.astype(float) @ b, bounds.dot_bound(a, b))


def _break_barrier(device: "Device", shape: MatrixShape) -> Broken:
    """C = A·B, then y = 2·C + y in the same recording, with no barrier between."""
    told = len(device.instance.messages)
    a, b = _matrices("f16", (SIZE, SIZE, SIZE))
    c, y = device.buffer((SIZE, SIZE)), device.buffer((SIZE, SIZE))
    with device.record(barriers=False) as recording:
        CooperativeMatmul(device, "f16", shape).record(recording, device.upload(a), device.upload(b), c)
        Saxpy(device, COPIES).record(recording, c, y)
    recording.submit_once()
    return _broken(
        device, Way.BARRIER, told, y.read(), COPIES * (a.astype(float) @ b), COPIES * bounds.dot_bound(a, b)
    )


_BREAK: dict[Way, Callable[["Device", MatrixShape], Broken]] = {
    Way.SHAPE: _break_shape,
    Way.LOCAL_SIZE: _break_local_size,
    Way.BARRIER: _break_barrier,
}


def _broken(
    device: "Device", way: Way, told: int, result: np.ndarray, truth: np.ndarray, bound: np.ndarray
) -> Broken:
    messages: list[Message] = device.instance.messages[told:]
    first = messages[0] if messages else None
    wrong = int((~(np.abs(result - truth) <= bound)).sum())
    said = " ".join(first.text.split("The Vulkan spec states")[0].split()) if first else ""
    return Broken(way.value, first.rule if first else "", said, wrong, result.size)
