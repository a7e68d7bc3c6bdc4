"""The matmul ladder: the same product, with fewer loads for each multiply-add on every rung."""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from helpers.edge import shaders
from helpers.edge.kernels.family import (
    ArgumentError,
    Call,
    Family,
    require_arrays,
    require_axes,
    require_shape,
    subgroup_size,
)
from helpers.edge.matmul import require_fit

if TYPE_CHECKING:
    from helpers.edge.vulkan import Buffer, Device, DeviceInfo, MatrixShape


class Rung(StrEnum):
    """The fp32 rungs, from the bottom up."""

    NAIVE = "naive"
    TILED = "tiled"
    REGISTER = "register"
    VECTOR = "vector"
    SUBGROUP = "subgroup"
    WIDE = "wide"


@dataclass(frozen=True)
class Traffic:
    """What a product moves if every tile is whole: caches and guards at the edges make it less.

    flop: floating-point operations. global_bytes: read from and written to buffers. shared_bytes:
    read from and written to shared memory. loads: load instructions that all invocations execute.
    """

    flop: int
    global_bytes: int
    shared_bytes: int
    loads: int

    @property
    def loads_per_multiply_add(self) -> float:
        """Load instructions for each multiply-add of an invocation."""
        return 2 * self.loads / self.flop

    @property
    def intensity(self) -> float:
        """FLOP for each byte that goes to or from buffers, FLOP/B."""
        return self.flop / self.global_bytes


@dataclass(frozen=True)
class Design:
    """A rung. constants: its specialization constants' defaults, in the order of their ids.

    tile: rows and columns of C that a workgroup has, from the constants. parts: (elements of buffers
    and of shared memory, and load instructions) for one multiply-add. needs: abilities. multiple: what
    K and N must be multiples of.
    """

    constants: Mapping[str, int]
    tile: Callable[[Mapping[str, int]], tuple[int, int]]
    parts: Callable[[Mapping[str, int]], tuple[float, float, float]]
    needs: tuple[str, ...] = ()
    multiple: int = 1


def _naive(c: Mapping[str, int]) -> tuple[float, float, float]:
    return 2, 0, 2


def _tiled(c: Mapping[str, int]) -> tuple[float, float, float]:
    once = 2 / c["tile"]
    return once, once + 2, once + 2


def _register(c: Mapping[str, int], width: int = 1) -> tuple[float, float, float]:
    once = 1 / (c["side"] * c["rows"]) + 1 / (c["side"] * c["columns"] * width)
    again = 1 / c["rows"] + 1 / (c["columns"] * width)
    return once, once + again, (once + again) / width


def _subgroup(c: Mapping[str, int], width: int = 1) -> tuple[float, float, float]:
    # A lane's load of A serves LANES steps along K, or as many pairs of them.
    loads = (1 / (c["columns"] * c["lanes"] * width) + 1 / c["rows"]) / width
    return loads * width, 0, loads


REGISTER_TILE = {"side": 8, "rows": 8, "columns": 8, "depth": 8}
DESIGNS = {
    Rung.NAIVE: Design({"tile": 16}, lambda c: (c["tile"], c["tile"]), _naive),
    Rung.TILED: Design({"tile": 16}, lambda c: (c["tile"], c["tile"]), _tiled),
    Rung.REGISTER: Design(REGISTER_TILE, lambda c: (c["side"] * c["rows"], c["side"] * c["columns"]), _register),
    Rung.VECTOR: Design(
        {"side": 8, "rows": 8, "columns": 2, "depth": 2},
        lambda c: (c["side"] * c["rows"], 4 * c["side"] * c["columns"]),
        lambda c: _register(c, 4),
        multiple=4,
    ),
    Rung.SUBGROUP: Design(
        {"group": 8, "rows": 16, "columns": 4, "lanes": 4},
        lambda c: (c["rows"], c["group"] * c["columns"]),
        _subgroup,
        ("subgroup_shuffle",),
    ),
    Rung.WIDE: Design(
        {"group": 8, "rows": 32, "columns": 2, "lanes": 4},
        lambda c: (c["rows"], 2 * c["group"] * c["columns"]),
        lambda c: _subgroup(c, 2),
        ("subgroup_shuffle", "int64"),
        2,
    ),
}
# For sizes that a rung's wide loads cannot take, the rung below that has the same idea.
BELOW = {Rung.VECTOR: Rung.REGISTER, Rung.WIDE: Rung.SUBGROUP}


class Matmul(Family):
    """C (m, n) = A (m, k) · B (k, n) in fp32 on one rung.

    sizes: other specialization constants by name, such as `rows=4`; the workgroup of the subgroup
    rungs is one subgroup unless `group` and `lanes` say otherwise. tile: rows and columns of C that a
    workgroup computes. Raises `ArgumentError` where the device lacks what the rung needs.
    """

    def __init__(self, device: "Device", rung: str = Rung.TILED, **sizes: int):
        super().__init__(device)
        self.rung = Rung(rung)
        design = DESIGNS[self.rung]
        if reason := why_not(device.info, self.rung):
            raise ArgumentError(f"no rung {self.rung}: {reason}", where=device.info.name, mend="use a rung below")
        self.constants = _constants(device, design, sizes)
        self.tile, self.multiple = design.tile(self.constants), design.multiple
        name = shaders.spirv(f"matmul_{self.rung}")
        self.kernel = device.kernel(name, dict(enumerate(self.constants.values())))
        self._below: Matmul | None = None

    def traffic(self, m: int, k: int, n: int) -> Traffic:
        """What a product of whole tiles moves."""
        work = m * k * n
        outside, inside, loads = DESIGNS[self.rung].parts(self.constants)
        return Traffic(2 * work, round(4 * (outside * work + m * n)), round(4 * inside * work), round(loads * work))

    def calls(self, a: "Buffer", b: "Buffer", c: "Buffer") -> tuple[Call, ...]:
        """a (m, k), b (k, n), c (m, n): fp32. Sizes that wide loads cannot take go to the rung below.

        Raises `helpers.edge.matmul.MatmulError` for other dtypes or shapes.
        """
        require_fit(a, b, c)
        (m, k), n = a.shape, b.shape[1]
        if k % self.multiple or n % self.multiple:
            self._below = self._below or Matmul(self.device, BELOW[self.rung])
            return self._below.calls(a, b, c)
        groups = (-(-n // self.tile[1]), -(-m // self.tile[0]))
        return (Call(self.kernel, groups, (a, b, c), struct.pack("<3I", m, n, k)),)


DTYPES = {"f16": ("float16", "float32"), "s8": ("int8", "int32")}  # of A and B, and of C


class CooperativeMatmul(Family):
    """C (m, n) = A (m, k) · B (k, n) on the device's matrix units: fp16 to fp32, or int8 to int32.

    inputs: `f16` or `s8`. shape: one that the device lists; its first that fits by default. rows,
    columns: tiles of C of a workgroup, which is one subgroup. Raises `ArgumentError` with the reason
    where the device has none.
    """

    def __init__(
        self,
        device: "Device",
        inputs: str = "f16",
        shape: "MatrixShape | None" = None,
        rows: int = 4,
        columns: int = 4,
    ):
        super().__init__(device)
        if inputs not in DTYPES:
            raise ArgumentError(f"matrices of {inputs}", mend=f"use one of {', '.join(DTYPES)}")
        if reason := why_no_cooperative(device.info, inputs):
            raise ArgumentError(
                f"no rung cooperative {inputs}: {reason}", where=device.info.name, mend="use a rung below"
            )
        self.inputs, self.shape = inputs, shape or cooperative_shapes(device.info, inputs)[0]
        if self.shape not in cooperative_shapes(device.info, inputs):
            there = ", ".join(map(str, cooperative_shapes(device.info, inputs)))
            raise ArgumentError(f"the device does not list {self.shape}", where=device.info.name, mend=f"use {there}")
        self.tile = (self.shape.m * rows, self.shape.n * columns)
        lanes = device.info.subgroup_size
        sizes = (lanes, self.shape.m, self.shape.n, self.shape.k, rows, columns)
        # The matrices belong to whole subgroups: the size is asked for, where the device lets one ask.
        control = {"subgroup_size": lanes} if device.info.can("subgroup_size_control") else {}
        full = device.info.can("full_subgroups")
        module = shaders.spirv(f"matmul_cooperative_{inputs}")
        self.kernel = device.kernel(module, dict(enumerate(sizes)), full_subgroups=full, **control)

    def calls(self, a: "Buffer", b: "Buffer", c: "Buffer") -> tuple[Call, ...]:
        """a (m, k), b (k, n): float16 or int8. c (m, n): float32 or int32."""
        given, result = DTYPES[self.inputs]
        require_arrays(given, a=a, b=b)
        require_arrays(result, c=c)
        for name, array in (("a", a), ("b", b)):
            require_axes(name, array, 2)
        (m, k), n = a.shape, b.shape[1]
        require_shape("b", b, k, n)
        require_shape("c", c, m, n)
        groups = (-(-n // self.tile[1]), -(-m // self.tile[0]))
        return (Call(self.kernel, groups, (a, b, c), struct.pack("<3I", m, n, k)),)


def why_not(info: "DeviceInfo", rung: str) -> str:
    """Why a device cannot take an fp32 rung, or "" when it can."""
    return next(filter(None, map(info.why_not, DESIGNS[Rung(rung)].needs)), "")


def why_no_cooperative(info: "DeviceInfo", inputs: str) -> str:
    """Why a device cannot multiply cooperative matrices of these inputs, or "" when it can."""
    needs = (
        "cooperative_matrix",
        "memory_model",
        *(("float16", "storage16") if inputs == "f16" else ("int8", "storage8")),
    )
    reason = next(filter(None, map(info.why_not, needs)), "")
    if not reason and not cooperative_shapes(info, inputs):
        return f"the device lists no shape {inputs}→{_result(inputs)} of a subgroup"
    return reason


def cooperative_shapes(info: "DeviceInfo", inputs: str) -> tuple["MatrixShape", ...]:
    """The shapes of a device that take these inputs to 32 bits within a subgroup, without saturation."""
    return tuple(
        shape
        for shape in info.cooperative_matrix
        if (shape.inputs, shape.result, shape.scope, shape.saturating) == (inputs, _result(inputs), "subgroup", False)
    )


def _result(inputs: str) -> str:
    return {"f16": "f32", "s8": "s32"}[inputs]


def _constants(device: "Device", design: Design, sizes: Mapping[str, int]) -> dict[str, int]:
    unknown = set(sizes) - set(design.constants)
    if unknown:
        raise ArgumentError(f"there is no size {unknown.pop()}", mend=f"the rung has {', '.join(design.constants)}")
    if any(value < 1 for value in sizes.values()):
        raise ArgumentError(f"sizes {dict(sizes)}", mend="use 1 or more for each")
    own = {}
    if "lanes" in design.constants:
        lanes = subgroup_size(device)
        own = {"group": lanes, "lanes": lanes}
        if sizes.get("lanes", lanes) > lanes:
            raise ArgumentError(f"{sizes['lanes']} lanes in subgroups of {lanes}", mend=f"use {lanes} at most")
    return {**design.constants, **own, **sizes}
