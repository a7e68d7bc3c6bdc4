"""symptom: wrong type

The work is returned instead of the rate.
"""


def answer(m, k, n, element_bytes, peak, bandwidth):
    flop = 2 * m * k * n
    moved = element_bytes * (m * k + k * n + m * n)
    return flop, moved
