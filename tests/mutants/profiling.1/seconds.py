"""symptom: wrong value

The time is returned instead of the rate.
"""


def answer(m, k, n, element_bytes, peak, bandwidth):
    flop = 2 * m * k * n
    moved = element_bytes * (m * k + k * n + m * n)
    return max(flop / peak, moved / bandwidth)
