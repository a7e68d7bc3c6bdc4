"""symptom: wrong dtype

Keeps the shards in the compute dtype.
"""

import math


def answer(job):
    kept = lambda shapes: sum(-(-rows // job.ranks) * math.prod(columns) for rows, *columns in shapes)
    shards = [kept(shapes) for shapes in job.groups]
    whole = [job.ranks * elements for elements in shards]
    moments = {"adamw": 2, "momentum": 1, "sgd": 0}[job.optimizer]
    gathered = whole[0] + max(whole[1:]) if job.reshard_after_forward else sum(whole)
    return {
        "parameters": job.compute_bytes * sum(shards),
        "gradients": job.compute_bytes * sum(shards),
        "optimizer": job.compute_bytes * moments * sum(shards),
        "unsharded group": job.compute_bytes * gathered,
        "reduce-scatter buffer": job.reduce_bytes * max(whole),
        "logits": 4 * job.tokens * job.vocab,
    }
