"""symptom: off by one

A sum of k products has k - 1 additions.
"""


def answer(m, k, n, element_bytes, peak, bandwidth):
    flop = m * n * (2 * k - 1)
    moved = element_bytes * (m * k + k * n + m * n)
    return min(peak, bandwidth * flop / moved)
