"""The host's half of the matrix lab: which shape a device multiplies, or why none, examined on invented devices."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from helpers.course.exercise import Exercise, Finding, Symptom
from helpers.edge.vulkan import DeviceInfo, MatrixShape
from helpers.edge.vulkan.features import FEATURES
from helpers.edge.vulkan.info import Kind, Limits

NEEDS = ("cooperative_matrix", "memory_model", "float16")
WANTED = "f16→f32"  # as a shape prints its types
DRAWN = 40
SMALL, WIDE, LONG = (MatrixShape(*sides, "f16", "f32") for sides in ((8, 8, 8), (16, 16, 16), (8, 8, 64)))
NARROW = MatrixShape(32, 32, 16, "f16", "f16")
INTEGERS = MatrixShape(32, 32, 32, "s8", "s32")
BRAIN = MatrixShape(32, 32, 16, "bf16", "f32")
SHARED = MatrixShape(64, 64, 16, "f16", "f32", scope="workgroup")
LIMITS = Limits((65535,) * 3, (1024, 1024, 64), 1024, 256, 2**27, 1.0)


@dataclass(frozen=True)
class _Device:
    """An invented device. name: as a finding calls it. info: what the answer sees."""

    name: str
    info: DeviceInfo

    @property
    def fitting(self) -> list[MatrixShape]:
        """What it could multiply fp16 to fp32 with, within a subgroup."""
        if any(map(self.info.why_not, NEEDS)):
            return []
        listed = self.info.cooperative_matrix
        return [s for s in listed if (s.inputs, s.result, s.scope) == ("f16", "f32", "subgroup")]


def reuse(shape: MatrixShape) -> float:
    """Multiply-adds for each element that is loaded: M·N·K / (M·K + K·N)."""
    return shape.m * shape.n / (shape.m + shape.n)


def examine_choice(answer: "Callable[[DeviceInfo], tuple[MatrixShape | None, str]]", seed: int) -> Finding | None:
    """The first invented device for which `answer(info)` is not the shape to use, or None with the reason."""
    for device in (*fixed_devices(), *drawn_devices(seed)):
        if finding := _examine_pair(answer(device.info), device):
            return finding
    return None


def invent(*shapes: MatrixShape, lacks: str = "") -> DeviceInfo:
    """A device that lists these shapes, and lacks at most one ability."""
    absent = lacks or ("" if shapes else "cooperative_matrix")
    reasons = tuple((each.name, f"the driver reports no {each.name}" * (each.name == absent)) for each in FEATURES)
    return DeviceInfo(
        index=0,
        name="invented",
        driver="invented 1.0",
        kind=Kind.OTHER,
        api_version="1.3.0",
        subgroup_size=32,
        cooperative_matrix=shapes,
        validation=False,
        limits=LIMITS,
        subgroup_sizes=(32, 32),
        absences=reasons,
    )


def fixed_devices() -> Iterator[_Device]:
    """One question each."""
    listed = {
        "one shape": (SMALL,),
        "another shape only": (MatrixShape(16, 8, 16, "f16", "f32"),),
        "the small shape first": (SMALL, WIDE),
        "the small shape last": (WIDE, SMALL),
        "a long K": (LONG, MatrixShape(16, 16, 8, "f16", "f32")),
        "a flat tile": (MatrixShape(128, 4, 16, "f16", "f32"), WIDE),
        "a larger shape with sums in fp16": (NARROW, SMALL),
        "a larger shape of bytes": (INTEGERS, SMALL),
        "a larger shape of bfloat16": (BRAIN, SMALL),
        "a larger shape of a workgroup": (SHARED, SMALL),
        "sums in fp16 only": (NARROW,),
        "bytes only": (INTEGERS,),
        "shapes of a workgroup only": (SHARED,),
    }
    for name, shapes in listed.items():
        yield _Device(name, invent(*shapes))
    yield _Device("no shape at all", invent())
    for ability in NEEDS:
        yield _Device(f"no {ability}", invent(SMALL, WIDE, lacks=ability))


def drawn_devices(seed: int) -> Iterator[_Device]:
    """Lists of shapes of all kinds, in any order."""
    draw = random.Random(seed)
    kinds = [("f16", "f32"), ("f16", "f32"), ("f16", "f16"), ("s8", "s32"), ("bf16", "f32"), ("f32", "f32")]
    for number in range(DRAWN):
        shapes = [
            MatrixShape(
                *(draw.choice((4, 8, 16, 32, 64)) for _ in range(3)),
                *draw.choice(kinds),
                scope=draw.choice(("subgroup", "subgroup", "workgroup")),
            )
            for _ in range(draw.randint(1, 6))
        ]
        yield _Device(f"drawn device {number}", invent(*shapes, lacks=draw.choice(("", "", "", "int8", *NEEDS))))


def _examine_pair(pair, device: _Device) -> Finding | None:
    if not (isinstance(pair, tuple) and len(pair) == 2):
        saw = f"{device.name}: a {type(pair).__name__} came back"
        return Finding("The answer is a pair: the shape or None, and the reason.", saw, Symptom.TYPE, 1)
    shape, reason = pair
    if not isinstance(shape, MatrixShape | None) or not isinstance(reason, str):
        saw = f"{device.name}: ({type(shape).__name__}, {type(reason).__name__}) came back"
        return Finding("The pair is a MatrixShape or None, and a text.", saw, Symptom.TYPE, 1)
    if shape is None:
        return _examine_reason(reason, device)
    if finding := _examine_shape(shape, device):
        return finding
    if reason:
        saw = f"{device.name}: {shape}, and the reason {reason!r}"
        return Finding("There is a reason only where there is no shape.", saw, Symptom.INTERFACE, 1)
    return None


def _examine_shape(shape: MatrixShape, device: _Device) -> Finding | None:
    listed = device.info.cooperative_matrix
    saw = f"{device.name}: {shape}, of {', '.join(map(str, listed)) or 'none listed'}"
    if shape not in listed:
        return Finding("The shape is one that the device lists.", saw, Symptom.SHAPE, 2)
    if (shape.inputs, shape.result) != ("f16", "f32"):
        return Finding("Inputs are fp16, and the sums fp32.", saw, Symptom.DTYPE, 2)
    if shape.scope != "subgroup":
        return Finding("The shape is one that a subgroup holds.", saw, Symptom.SHAPE, 2)
    if not device.fitting:
        missing = next(filter(device.info.why_not, NEEDS))
        saw = f"a device whose why_not({missing!r}) is {device.info.why_not(missing)!r} was given {shape}"
        return Finding("A device that lacks what the kernel needs gets no matrices.", saw, Symptom.DEVICE, 3)
    if reuse(shape) < max(map(reuse, device.fitting)):
        return Finding("Of the shapes that fit, it is the one that loads least.", saw, Symptom.VALUE, 4)
    return None


def _examine_reason(reason: str, device: _Device) -> Finding | None:
    listed = ", ".join(map(str, device.info.cooperative_matrix)) or "none"
    saw = f"{device.name}: None, because {reason!r}; listed: {listed}"
    if device.fitting:
        return Finding("Where a shape fits, it is taken.", saw, Symptom.VALUE, 2)
    missing = [device.info.why_not(ability) for ability in NEEDS if device.info.why_not(ability)]
    if missing and not any(text in reason for text in missing):
        return Finding("The reason says which ability is missing.", saw, Symptom.INTERFACE, 3)
    if not missing and WANTED not in reason:
        return Finding("The reason says which shape is missing.", saw, Symptom.INTERFACE, 5)
    return None


EXERCISES = (
    Exercise(
        id="edge.6",
        title="Choose a shape, or say why not",
        hints=(
            'Return two things: a shape and "", or None and a text that says why. A shape is one of '
            "info.cooperative_matrix, as it is.",
            "Keep the shapes with inputs f16, result f32 and scope subgroup. The list may hold shapes of other types "
            "and of whole workgroups, in any order; the largest may be one of those.",
            "Before you look at the shapes, ask for three abilities: cooperative_matrix, memory_model and float16. "
            'info.why_not(ability) is the driver\'s own reason, or "" where the ability is there. Hand it on.',
            "How many multiply-adds does each loaded element serve? M·N·K / (M·K + K·N). A long K loads more and "
            "serves no more; a flat tile serves few. max() takes a key.",
            "Where the abilities are there and no shape is left, say what you looked for: f16→f32, as shapes print.",
        ),
        examine=examine_choice,
    ),
)
