"""symptom: above the roof

The higher of the two roofs is taken.
"""


def answer(m, k, n, element_bytes, peak, bandwidth):
    flop = 2 * m * k * n
    moved = element_bytes * (m * k + k * n + m * n)
    return max(peak, bandwidth * flop / moved)
