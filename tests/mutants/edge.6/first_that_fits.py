"""symptom: wrong value

The first in the list, for drivers list the best one first, one hopes.
"""


def answer(info):
    for ability in ("cooperative_matrix", "memory_model", "float16"):
        if reason := info.why_not(ability):
            return None, reason
    wanted = ("f16", "f32", "subgroup")
    fitting = [s for s in info.cooperative_matrix if (s.inputs, s.result, s.scope) == wanted]
    if not fitting:
        return None, "the device lists no shape f16→f32 of a subgroup"
    return fitting[0], ""
