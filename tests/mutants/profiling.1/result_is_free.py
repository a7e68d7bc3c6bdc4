"""symptom: wrong value

The result is not written.
"""


def answer(m, k, n, element_bytes, peak, bandwidth):
    flop = 2 * m * k * n
    moved = element_bytes * (m * k + k * n)
    return min(peak, bandwidth * flop / moved)
