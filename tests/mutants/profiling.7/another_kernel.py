"""symptom: wrong interface

A kernel that is known to break the rule.
"""

from helpers.profiling.recordings import recorded_kernel


def answer(record, said, limiter):
    return recorded_kernel("rtx3090_gemm_uncoalesced")
