"""Kernels of the matrix lab on a device that has cooperative matrix, in a child of its own."""

import json
import os
import pickle
import random
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from helpers.course.exercise import Finding, Symptom
from helpers.edge import bounds, cooperative
from helpers.edge.vulkan import (
    Device,
    DeviceLost,
    Kernel,
    MatrixShape,
    VulkanError,
    devices,
    driver,
    open_device,
    why_none,
)
from helpers.edge.vulkan.drivers import Driver

DEADLINE_S, PATIENT_S, CHILD_S = 15.0, 90.0, 150.0  # of a submission, of one that compiles long, of a child
GUARD = np.float32(-77.0)  # what C holds before, and where nothing is stored


@dataclass(frozen=True)
class Place:
    """A device. shape: of its matrices, the one to use; None where it has none. lanes: of its subgroups."""

    name: str
    driver: Driver
    shape: MatrixShape | None
    lanes: int


@dataclass(frozen=True)
class GemmKernel:
    """A compiled text. name: as a finding calls it. tile: of C, for a workgroup. step: along K.

    matrices: whether it uses them. listed: whether the device lists their shape.
    """

    name: str
    module: bytes
    tile: tuple[int, int]
    step: int
    matrices: bool = True
    listed: bool = True

    def hint(self, number: int) -> int:
        """The hint of that number, which is about matrices, or the one about the way without."""
        return number if self.matrices else 1


@dataclass(frozen=True)
class _Case:
    """One product. whole: no tile is cut. a (m, k), b (k, n): fp16."""

    whole: bool
    a: np.ndarray
    b: np.ndarray

    @property
    def size(self) -> str:
        return "A {} × {}, B {} × {}".format(*self.a.shape, *self.b.shape)


@dataclass(frozen=True)
class _Seen:
    """What became of it: c (m, n), and what the shader did."""

    c: np.ndarray
    loads: int
    outside: int
    stores: int
    beyond: int


def places() -> Iterator[Place]:
    """The device of this machine that has cooperative matrix, and the newer lavapipe, where they are here."""
    able = [info for info in devices() if not cooperative.choose(info, "f16").reason]
    for info in able[:1]:
        shape = cooperative.choose(info, "f16").shape
        yield Place(info.name, Driver("default", None), shape, info.subgroup_size)
    newer = driver("lavapipe-newer")
    if not newer.why_not and (told := _ask(newer)):
        yield Place("lavapipe 26", newer, MatrixShape(*told[:5]), told[5])


def here() -> Place:
    """This machine's first device, for kernels without matrices."""
    info = devices()[0]
    return Place(info.name, Driver("default", None), None, info.subgroup_size)


def why_not_here() -> str | None:
    """Why no cooperative matrix can be run here, and how to get a driver that has it; None where one is."""
    if reason := why_none():
        return reason
    if next(places(), None):
        return None
    reason = driver("lavapipe-newer").why_not or "the newer lavapipe did not start"
    done = "your kernel without matrices is right, and the one with them was read, not run"
    return f"{done}: no device here multiplies matrices; {reason}"


@cache
def _ask(newer: Driver) -> tuple | None:
    """The sides and types of its shape, and its lanes."""
    program = (
        "import json\nfrom helpers.edge import cooperative\nfrom helpers.edge.vulkan import devices\n"
        "found = [(cooperative.choose(i, 'f16').shape, i.subgroup_size) for i in devices()]\n"
        "print(json.dumps([(s.m, s.n, s.k, s.inputs, s.result, lanes) for s, lanes in found if s][:1]))"
    )
    try:
        done = newer.run(program, CHILD_S)
    except subprocess.TimeoutExpired:
        return None
    found = json.loads(done.stdout or "[]") if not done.returncode else []
    return tuple(found[0]) if found else None


def draw_cases(tile: tuple[int, int], step: int, seed: int) -> list[_Case]:
    """Products of whole tiles and steps first, then tails, down to one multiply-add."""
    rows, columns = tile
    wild = random.Random(f"{seed} {tile} {step}")
    whole = [(rows, step, columns), (2 * rows, 3 * step, 2 * columns)]
    tails = [(1, 1, 1), (rows + 3, 2 * step + 5, columns + 1), (3, step, columns - 1)]
    tails.append((wild.randint(2, 40), wild.randint(2, 70), wild.randint(2, 40)))
    numbers = np.random.default_rng(seed)

    def matrix(*shape: int) -> np.ndarray:
        return numbers.uniform(0.5, 2.0, shape).astype(np.float16)

    sizes = [(True, size) for size in whole] + [(False, size) for size in tails]
    return [_Case(flag, matrix(m, k), matrix(k, n)) for flag, (m, k, n) in sizes]


def run_trial(kernels: list[GemmKernel], place: Place, seed: int) -> Finding | None:
    """What a child of its driver found, one kernel after the other, or how it ended.

    Where it ends at a shape that the device does not list, that is no finding.
    """
    with tempfile.TemporaryDirectory(prefix="gemm-") as folder:
        Path(folder, "kernels.pickle").write_bytes(pickle.dumps((kernels, seed)))
        ended = _end_of_child(place, folder)
        found = Path(folder, "finding.pickle")
        if found.exists():
            return pickle.loads(found.read_bytes())
        reached = kernels[max(0, len(list(Path(folder).glob("reached-*"))) - 1)]
    if not ended or not reached.listed:
        return None
    saw = f"{place.name}, {reached.name}: the child {ended}"
    return Finding("The shader runs to its end.", saw, Symptom.ABORTS, reached.hint(4))


def _end_of_child(place: Place, folder: str) -> str:
    """How it ended, or "" when it came to its end."""
    program = f"from helpers.course.exercises.edge.gemm_trial import run_child; run_child({folder!r})"
    try:
        done = place.driver.run(program, CHILD_S)
    except subprocess.TimeoutExpired:
        return f"was not done in {CHILD_S:g} s"
    last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    return f"ended with {done.returncode}: {last}" if done.returncode else ""


def run_child(folder: str) -> None:
    """Examine the kernels of a folder on the device of this process, and leave there what was found first."""
    kernels, seed = pickle.loads(Path(folder, "kernels.pickle").read_bytes())
    needs = ("cooperative_matrix",) if any(kernel.matrices for kernel in kernels) else ()
    with open_device(needs=needs) as device:
        for number, kernel in enumerate(kernels):
            Path(folder, f"reached-{number}").touch()
            device.deadline_s = DEADLINE_S if kernel.listed else PATIENT_S
            if finding := _examine_kernel(device, kernel, seed):
                Path(folder, "finding.pickle").write_bytes(pickle.dumps(finding))
                break
        if device.lost:
            os._exit(0)  # it cannot be taken down


def _examine_kernel(device: Device, kernel: GemmKernel, seed: int) -> Finding | None:
    """A shape that is not listed may be refused, or take too long to compile: that proves nothing."""
    try:
        pipeline = _pipeline(device, kernel)
        for case in draw_cases(kernel.tile, kernel.step, seed):
            if finding := _examine_result(kernel, case, _multiply(device, pipeline, kernel.tile, case)):
                return finding
    except DeviceLost:
        saw = f"{kernel.name}: the device was not done after {DEADLINE_S:g} s"
        return (
            Finding("Every invocation comes to an end.", saw, Symptom.HANGS, kernel.hint(4))
            if kernel.listed
            else None
        )
    except VulkanError as error:
        saw = f"{kernel.name}: {error}"
        return Finding("The device takes the shader.", saw, Symptom.INVALID_USE, 1) if kernel.listed else None
    messages = device.take_messages()
    if messages and kernel.listed:
        return Finding("The validation layer is silent.", f"{kernel.name}: {messages[0]}", Symptom.INVALID_USE, 1)
    return None


def _pipeline(device: Device, kernel: GemmKernel) -> Kernel:
    """With whole subgroups of the size that the device names, where it lets one ask for that."""
    info, asked = device.info, {}
    if kernel.matrices:
        asked["full_subgroups"] = info.can("full_subgroups")
        asked |= {"subgroup_size": info.subgroup_size} if info.can("subgroup_size_control") else {}
    return device.kernel(kernel.module, **asked)


def _multiply(device: Device, pipeline: Kernel, tile: tuple[int, int], case: _Case) -> _Seen:
    (m, k), n = case.a.shape, case.b.shape[1]
    arrays = (packed(case.a), packed(case.b), np.full((m, n), GUARD))
    buffers = [*map(device.upload, arrays), device.buffer(4, "uint32")]
    pipeline.run((-(-n // tile[1]), -(-m // tile[0])), buffers, struct.pack("<3I", m, n, k))
    return _Seen(buffers[2].read(), *map(int, buffers[3].read()))


def packed(matrix: np.ndarray) -> np.ndarray:
    """The fp16 elements, two to a 32-bit word, which every device can read."""
    flat = np.append(matrix.ravel(), np.zeros(matrix.size % 2, np.float16))
    return flat.view(np.uint32)


def _examine_result(kernel: GemmKernel, case: _Case, seen: _Seen) -> Finding | None:
    size = f"{kernel.name}, {case.size}"
    if seen.beyond:
        saw = f"{size}: {seen.beyond} stores outside of C"
        return Finding("Nothing is stored outside of C.", saw, Symptom.OUT_OF_BOUNDS, kernel.hint(4))
    if seen.outside:
        saw = f"{size}: {seen.outside} loads outside of A or B"
        return Finding("Nothing is loaded from outside of A and B.", saw, Symptom.OUT_OF_BOUNDS, kernel.hint(4))
    if finding := _examine_values(kernel, case, seen, size):
        return finding
    (m, k), n = case.a.shape, case.b.shape[1]
    if seen.loads < m * k + k * n:
        saw = f"{size}: {seen.loads} loads were counted"
        return Finding("A and B are read through load_a and load_b.", saw, Symptom.INTERFACE, 1)
    groups = (-(-m // kernel.tile[0]), -(-n // kernel.tile[1]))
    if kernel.matrices and seen.loads > m * k * groups[1] + k * n * groups[0]:
        saw = f"{size}: {seen.loads} loads from buffers"
        asked = "A workgroup loads each element of A and B that its tile needs once."
        return Finding(asked, saw, Symptom.TRAFFIC, 3)
    if seen.stores > m * n:
        saw = f"{size}: {seen.stores} stores for {m * n} elements"
        return Finding("Each element of C is stored once.", saw, Symptom.REPEATED, kernel.hint(5))
    return None


def _examine_values(kernel: GemmKernel, case: _Case, seen: _Seen, size: str) -> Finding | None:
    if not np.isfinite(seen.c).all():
        return Finding(
            "Finite inputs give finite results.", f"{size}: C has NaN or infinity", Symptom.NAN, kernel.hint(5)
        )
    truth = case.a.astype(np.float64) @ case.b.astype(np.float64)
    wrong = np.argwhere(np.abs(seen.c - truth) > bounds.dot_bound(case.a, case.b))
    if not len(wrong):
        return None
    first, worst = tuple(map(int, wrong[0])), np.abs(seen.c - truth).max()
    saw = f"{size}: {len(wrong)} of {truth.size} elements are wrong, the first is {first}; largest error {worst:.2g}"
    if len(wrong) == truth.size > 1 and seen.c.any() and np.ptp(seen.c / truth) < 1e-5:
        return Finding("C = A·B.", saw, Symptom.CONSTANT_FACTOR, kernel.hint(5))
    if not case.whole:
        return Finding("Tiles that are not whole give right results too.", saw, Symptom.TAIL, kernel.hint(4))
    hint = 2 if len(wrong) == truth.size > 1 else 3  # all of them: what is multiplied, rather than who brings it
    return Finding("C = A·B in every element.", saw, Symptom.VALUE, kernel.hint(hint))
