"""symptom: wrong dtype

Every element has four bytes.
"""


def answer(m, k, n, element_bytes, peak, bandwidth):
    flop = 2 * m * k * n
    moved = 4 * (m * k + k * n + m * n)
    return min(peak, bandwidth * flop / moved)
