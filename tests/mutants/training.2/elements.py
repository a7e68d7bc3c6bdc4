"""symptom: off by a constant factor

Counts elements, not bytes.
"""

import math


def answer(job):
    kept = lambda shapes: sum(-(-rows // job.ranks) * math.prod(columns) for rows, *columns in shapes)
    shards = [kept(shapes) for shapes in job.groups]
    whole = [job.ranks * elements for elements in shards]
    moments = {"adamw": 2, "momentum": 1, "sgd": 0}[job.optimizer]
    gathered = whole[0] + max(whole[1:]) if job.reshard_after_forward else sum(whole)
    return {
        "parameters": 1 * sum(shards),
        "gradients": 1 * sum(shards),
        "optimizer": 1 * moments * sum(shards),
        "unsharded group": 1 * gathered,
        "reduce-scatter buffer": 1 * max(whole),
        "logits": 4 * job.tokens * job.vocab,
    }
