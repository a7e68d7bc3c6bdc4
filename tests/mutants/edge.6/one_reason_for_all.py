"""symptom: wrong interface

The same words, whatever is missing.
"""


def answer(info):
    for ability in ("cooperative_matrix", "memory_model", "float16"):
        if reason := info.why_not(ability):
            return None, "no cooperative matrix"
    wanted = ("f16", "f32", "subgroup")
    fitting = [s for s in info.cooperative_matrix if (s.inputs, s.result, s.scope) == wanted]
    if not fitting:
        return None, "no cooperative matrix"
    return max(fitting, key=lambda s: s.m * s.n / (s.m + s.n)), ""
