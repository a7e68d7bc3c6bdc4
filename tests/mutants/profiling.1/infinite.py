"""symptom: not a number

The peak is scaled beyond every number.
"""


def answer(m, k, n, element_bytes, peak, bandwidth):
    return min(peak, float("inf")) * float("inf")
