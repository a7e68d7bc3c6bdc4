"""symptom: above the roof

Peak is the only roof.
"""


def answer(m, k, n, element_bytes, peak, bandwidth):
    return peak
