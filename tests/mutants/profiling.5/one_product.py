"""symptom: off by a constant factor

Forgets the second product, and the add of the first.
"""


def answer(a, fused):
    pairs = a.queries * (a.queries + 1) // 2 if a.causal and fused else a.queries * a.keys
    flop = a.batch * a.heads * pairs * a.width
    elements = 2 * a.batch * a.heads * a.queries * a.width + 2 * a.batch * a.kv_heads * a.keys * a.width
    if not fused:
        elements += 4 * a.batch * a.heads * a.queries * a.keys
    return flop, a.element_bytes * elements
