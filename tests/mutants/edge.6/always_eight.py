"""symptom: wrong shape

The shape of a CPU driver, whether the device lists it or not.
"""

from helpers.edge.vulkan import MatrixShape


def answer(info):
    for ability in ("cooperative_matrix", "memory_model", "float16"):
        if reason := info.why_not(ability):
            return None, reason
    return MatrixShape(8, 8, 8, "f16", "f32"), ""
