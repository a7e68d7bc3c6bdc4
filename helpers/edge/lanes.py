"""The same kernels where a subgroup has 4, 8 or 16 lanes: on lavapipe, in a child, for it reads its width once.

A kernel may take a number of lanes for granted in its text. `assume` writes such a kernel out of one of the
course's, `observe` runs it, and `model_sum` says in NumPy what it must come to.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from helpers.edge import bounds, shaders, spirv
from helpers.edge.kernels import Reduction, RmsNorm, Scan, Softmax
from helpers.edge.vulkan import NoVulkan, devices, driver, open_device, why_none
from helpers.errors import CourseError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from helpers.edge.kernels import Family
    from helpers.edge.vulkan import Device

LANES = (4, 8, 16)
INVOCATIONS = 128  # of the sum's workgroup
SIZES = (1, 37, 5000)
EPSILON = 1e-6
WIDTH_VARIABLE, LANE_BITS, WIDEST = "LP_NATIVE_VECTOR_WIDTH", 32, 512
# Mesa's disk cache does not ask for the width: it would hand out code that was compiled for another one.
UNCACHED = {"MESA_SHADER_CACHE_DISABLE": "true"}
KERNELS = {"sum": "reduce_subgroup", "softmax": "softmax", "RMSNorm": "rmsnorm"}  # that one may take for granted


class LanesError(CourseError):
    """A kernel that knows no subgroups, or a child that failed."""


@dataclass(frozen=True)
class Observation:
    """What one width showed.

    lanes: counted by ballot. errors: of each family over `SIZES`, in units of its bound. ones: the sum of 128
    ones. total: the sum of a softmax's row, which should be 1. norm: of a row of ones, which should be 1.
    """

    lanes: int
    errors: dict[str, float]
    ones: float
    total: float
    norm: float


def why_not(lanes: int) -> str:
    """Why no subgroups of this size can be had here, or ""."""
    if not devices():
        return why_none()
    if reason := driver("lavapipe").why_not:
        return reason
    if lanes * LANE_BITS >= WIDEST and not _has_wide_vectors():
        return f"{lanes} lanes need a processor with AVX-512"
    return ""


def assume(glsl: str, lanes: int = 32) -> str:
    """The kernel as one writes it who takes the number of lanes for granted.

    Raises `LanesError` for a kernel that asks for nothing of a subgroup.
    """
    place = "gl_LocalInvocationID.x"
    known = {
        "subgroupElect()": f"{place} % {lanes} == 0",
        "gl_SubgroupID": f"{place} / {lanes}",
        "gl_NumSubgroups": f"GROUP / {lanes}",
    }
    if not any(word in glsl for word in known):
        raise LanesError("the kernel asks nothing about subgroups", mend=f"use one of {', '.join(KERNELS.values())}")
    for word, constant in known.items():
        glsl = glsl.replace(word, constant)
    return glsl


def model_sum(x: Sequence[float], lanes: int, assumed: int) -> float:
    """The sum of x when only each `assumed`-th invocation speaks for its subgroup of `lanes`."""
    subgroups = np.asarray(x, float).reshape(-1, lanes).sum(axis=1)
    speakers = np.arange(0, len(x), assumed) // lanes
    return float(subgroups[speakers].sum())


def observe(lanes: int, assumed: int = 0, seconds: float = 120) -> Observation:
    """Run the course's kernels, or those that take `assumed` lanes for granted, on subgroups of `lanes`.

    Raises `NoVulkan` with the reason where that cannot be had, and `LanesError` where the child failed.
    """
    if reason := why_not(lanes):
        raise NoVulkan(f"no subgroups of {lanes}", mend=reason)
    program = f"from helpers.edge.lanes import _child; _child({assumed})"
    done = driver("lavapipe").run(program, seconds, **UNCACHED, **{WIDTH_VARIABLE: str(lanes * LANE_BITS)})
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise LanesError(
            f"the child ended with {done.returncode}: {last}", where=f"{lanes} lanes", mend="run it alone"
        )
    return Observation(**json.loads(done.stdout))


def speakers_figure(lanes: Sequence[int] = LANES, assumed: int = 32, invocations: int = INVOCATIONS) -> "Figure":
    """One row a subgroup size: its subgroups, those that nobody speaks for hatched, and a dot on each speaker."""
    from matplotlib import pyplot
    from matplotlib.patches import Rectangle

    figure, axes = pyplot.subplots(figsize=(8.4, 0.7 * len(lanes) + 0.8))
    for row, size in enumerate(lanes):
        for start in range(0, invocations, size):
            heard = any(speaker in range(start, start + size) for speaker in range(0, invocations, assumed))
            look = {"facecolor": "#cfe0f1"} if heard else {"facecolor": "white", "hatch": "////"}
            axes.add_patch(Rectangle((start, row + 0.15), size, 0.7, edgecolor="gray", **look))
    for speaker in range(0, invocations, assumed):
        axes.plot([speaker + 0.5] * len(lanes), np.arange(len(lanes)) + 0.5, "ko", markersize=5)
    axes.set(xlim=(-1, invocations + 1), ylim=(len(lanes), 0), xlabel="invocation of the workgroup")
    axes.set_yticks(np.arange(len(lanes)) + 0.5, [f"{size} lanes" for size in lanes])
    axes.set_xticks(range(0, invocations + 1, assumed))
    figure.tight_layout()
    return figure


def _child(assumed: int) -> None:
    with open_device("llvmpipe") as device:
        families = _families(device, assumed)
        errors = {name: max(_CASES[name](device, families[name], n) for n in SIZES) for name in families}
        ones, row = device.upload(np.ones(INVOCATIONS, np.float32)), np.zeros((1, 64), np.float32)
        result, total, norm = device.buffer(1), device.buffer(row.shape), device.buffer(row.shape)
        families["sum"].run(ones, result)
        families["softmax"].run(device.upload(row), total)
        families["RMSNorm"].run(device.upload(row + 1), device.upload(row[0] + 1), norm)
        values = float(result.array()[0]), float(total.array().sum(dtype=float)), float(norm.array()[0, 0])
        found = Observation(device.subgroups.counted, errors, *values)
    print(json.dumps(asdict(found)))


def _families(device: "Device", assumed: int) -> dict[str, "Family"]:
    families = {
        "sum": Reduction(device, group=INVOCATIONS),
        "scan": Scan(device, "subgroup"),
        "softmax": Softmax(device),
        "RMSNorm": RmsNorm(device, EPSILON),
    }
    if not assumed:
        return families
    for name, kernel in KERNELS.items():
        module = spirv.compile_cached(assume(shaders.glsl(kernel), assumed))
        families[name].kernel = device.kernel(module, {0: families[name].group})
    return {name: families[name] for name in KERNELS}


def _draw(n: int, *rows: int) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((*rows, n)).astype(np.float32)


def _sum_error(device: "Device", family: Reduction, n: int) -> float:
    x, result = _draw(n), device.buffer(1)
    family.run(device.upload(x), result)
    return bounds.error_ratio(result.array(), [x.sum(dtype=float)], bounds.sum_bound(x, family.depth(n)))


def _scan_error(device: "Device", family: Scan, n: int) -> float:
    x, y = _draw(n), device.buffer(n)
    family.run(device.upload(x), y)
    return bounds.error_ratio(y.array(), np.cumsum(x, dtype=float), bounds.scan_bound(x, family.depth(n)))


def _softmax_error(device: "Device", family: Softmax, n: int) -> float:
    x, y = 4 * _draw(n, 3), device.buffer((3, n))
    family.run(device.upload(x), y)
    return bounds.error_ratio(y.array(), bounds.softmax(x), bounds.softmax_bound(x, family.steps(n)))


def _rmsnorm_error(device: "Device", family: RmsNorm, n: int) -> float:
    x, weight, y = _draw(n, 3), _draw(n), device.buffer((3, n))
    family.run(device.upload(x), device.upload(weight), y)
    truth, bound = bounds.rmsnorm(x, weight, EPSILON), bounds.rmsnorm_bound(x, weight, EPSILON)
    return bounds.error_ratio(y.array(), truth, bound)


_CASES = {"sum": _sum_error, "scan": _scan_error, "softmax": _softmax_error, "RMSNorm": _rmsnorm_error}


def _has_wide_vectors() -> bool:
    try:
        return "avx512f" in Path("/proc/cpuinfo").read_text(encoding="ascii")
    except OSError:
        return False
