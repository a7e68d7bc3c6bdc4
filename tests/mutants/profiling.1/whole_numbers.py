"""symptom: wrong value

The intensity is rounded down.
"""


def answer(m, k, n, element_bytes, peak, bandwidth):
    flop = 2 * m * k * n
    moved = element_bytes * (m * k + k * n + m * n)
    return min(peak, bandwidth * (flop // moved))
