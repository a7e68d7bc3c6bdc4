"""symptom: off by a constant factor

A multiply-add counts as one operation.
"""


def answer(m, k, n, element_bytes, peak, bandwidth):
    flop = m * k * n
    moved = element_bytes * (m * k + k * n + m * n)
    return min(peak, bandwidth * flop / moved)
