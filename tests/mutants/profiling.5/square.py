"""symptom: wrong value

As many keys as queries.
"""


def answer(a, fused):
    pairs = a.queries**2
    flop = 4 * a.batch * a.heads * pairs * a.width
    elements = 2 * a.batch * a.heads * a.queries * a.width + 2 * a.batch * a.kv_heads * a.keys * a.width
    if not fused:
        elements += 4 * a.batch * a.heads * a.queries * a.keys
    return flop, a.element_bytes * elements
