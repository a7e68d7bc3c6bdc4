"""symptom: above the roof

Bandwidth is the only roof.
"""


def answer(m, k, n, element_bytes, peak, bandwidth):
    flop = 2 * m * k * n
    moved = element_bytes * (m * k + k * n + m * n)
    return bandwidth * flop / moved
