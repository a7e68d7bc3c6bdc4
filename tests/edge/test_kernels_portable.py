"""The same kernels where subgroups have 4, 8 and 16 lanes, each in a child: lavapipe reads its width once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kernel_cases import CASES

from helpers.edge import spirv
from helpers.edge.vulkan import devices

PROGRAM = Path(__file__).with_name("kernel_cases.py")
# What a kernel does that takes 32 lanes for granted: only lane 0 of each 32 speaks for its subgroup.
OF_32 = """#version 450
#extension GL_KHR_shader_subgroup_arithmetic : require
layout(local_size_x = 32) in;
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { float y[]; };
void main() {
    float sum = subgroupAdd(x[gl_LocalInvocationID.x]);
    if (gl_LocalInvocationID.x == 0) y[0] = sum;
}
"""


def run_cases(python, name, **environment):
    done = subprocess.run(
        [*python, str(PROGRAM), name], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("bits", "lanes"), [(128, 4), (256, 8), (512, 16)])
def test_every_family_at_every_subgroup_size(bits, lanes):
    if not any("llvmpipe" in info.name for info in devices()):
        pytest.skip("needs lavapipe: apt-get install mesa-vulkan-drivers")
    if bits == 512 and not _has_wide_vectors():
        pytest.skip("needs a processor with AVX-512: LP_NATIVE_VECTOR_WIDTH=512")
    # Mesa 22.3 hands code that it compiled for one width to a process of another, from its cache on disk.
    widths = {"LP_NATIVE_VECTOR_WIDTH": str(bits), "MESA_SHADER_CACHE_DISABLE": "true"}
    found = run_cases([sys.executable], "llvmpipe", **widths)
    assert found["subgroup"] == lanes and found["messages"] == []
    assert set(found["ratios"]) | set(found["absent"]) == set(CASES)
    assert max(found["ratios"].values()) <= 1, found["ratios"]


def test_every_family_on_the_newer_lavapipe(newer_mesa):
    """With cooperative matrix, for real."""
    found = run_cases(newer_mesa.python, "llvmpipe", **newer_mesa.environment)
    assert set(found["ratios"]) == set(CASES) and found["messages"] == []
    assert max(found["ratios"].values()) <= 1, found["ratios"]


def test_a_kernel_that_assumes_32_lanes_is_wrong_here(any_device):
    """The cases would notice: the sum of 32 ones is the subgroup's size, not 32."""
    lanes = any_device.subgroups.counted
    if lanes >= 32:
        pytest.skip(f"subgroups of {lanes}")
    x, y = any_device.buffer(32), any_device.buffer(1)
    x.array()[:] = 1
    any_device.kernel(spirv.compile_cached(OF_32)).run((1,), [x, y])
    assert y.array()[0] == lanes


def _has_wide_vectors():
    try:
        return "avx512f" in Path("/proc/cpuinfo").read_text(encoding="ascii")
    except OSError:
        return False
