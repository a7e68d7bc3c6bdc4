"""symptom: wrong shape

Stops after sixteen bytes a parameter.
"""

import math


def answer(job):
    weights = sum(-(-rows // job.ranks) * math.prod(columns) for shapes in job.groups for rows, *columns in shapes)
    return {"parameters": 4 * weights, "gradients": 4 * weights, "optimizer": 8 * weights}
