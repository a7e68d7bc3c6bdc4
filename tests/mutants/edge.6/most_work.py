"""symptom: wrong value

The most multiply-adds, where a long K counts as much as a wide tile.
"""


def answer(info):
    for ability in ("cooperative_matrix", "memory_model", "float16"):
        if reason := info.why_not(ability):
            return None, reason
    wanted = ("f16", "f32", "subgroup")
    fitting = [s for s in info.cooperative_matrix if (s.inputs, s.result, s.scope) == wanted]
    if not fitting:
        return None, "the device lists no shape f16→f32 of a subgroup"
    return max(fitting, key=lambda s: s.m * s.n * s.k), ""
