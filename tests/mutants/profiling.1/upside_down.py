"""symptom: wrong value

Intensity is bytes over FLOP.
"""


def answer(m, k, n, element_bytes, peak, bandwidth):
    flop = 2 * m * k * n
    moved = element_bytes * (m * k + k * n + m * n)
    return min(peak, bandwidth * moved / flop)
