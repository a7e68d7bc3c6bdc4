"""symptom: wrong type

Returns the sum of the lines.
"""

import math


def answer(job):
    weights = sum(-(-rows // job.ranks) * math.prod(columns) for shapes in job.groups for rows, *columns in shapes)
    return 16 * weights + 4 * job.tokens * job.vocab
