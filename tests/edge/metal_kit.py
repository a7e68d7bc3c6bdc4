"""What the tests of Metal share: whether the stand-in can run here, and texts to run on it."""

import pytest

from helpers.edge.metal import ShimUnavailable, shim_library
from helpers.edge.metal.build import compiler

HEADER = "#include <metal_stdlib>\n#include <metal_simdgroup_matrix>\nusing namespace metal;\n"


def why_not() -> str:
    try:
        compiler()
    except ShimUnavailable as error:
        return str(error)
    return ""


needs_shim = pytest.mark.skipif(bool(why_not()), reason=why_not() or "the stand-in runs")


def text(body: str, parameters: str = "device float* x", before: str = "") -> str:
    """A kernel `f` with thread and threadgroup positions at hand; its body begins on line 5 without `before`."""
    builtins = (
        "uint i [[thread_position_in_grid]], uint local [[thread_position_in_threadgroup]], "
        "uint lane [[thread_index_in_simdgroup]], uint lanes [[threads_per_simdgroup]], "
        "uint group [[threadgroup_position_in_grid]], uint simdgroup [[simdgroup_index_in_threadgroup]]"
    )
    return f"{HEADER}{before}kernel void f({parameters}, {builtins}) {{\n{body}\n}}\n"


def run(source: str, *arguments, width: int = 32, seconds: float = 5.0, **dispatch):
    """Compile for the stand-in, and call its only kernel."""
    return shim_library(source, simd_width=width, deadline_s=seconds).f(*arguments, **dispatch)
