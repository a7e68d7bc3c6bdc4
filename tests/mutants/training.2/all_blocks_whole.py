"""symptom: not freed

Forgets that a block goes away before the next one comes.
"""

import math


def answer(job):
    kept = lambda shapes: sum(-(-rows // job.ranks) * math.prod(columns) for rows, *columns in shapes)
    shards = [kept(shapes) for shapes in job.groups]
    whole = [job.ranks * elements for elements in shards]
    moments = {"adamw": 2, "momentum": 1, "sgd": 0}[job.optimizer]
    gathered = sum(whole)
    return {
        "parameters": 4 * sum(shards),
        "gradients": 4 * sum(shards),
        "optimizer": 4 * moments * sum(shards),
        "unsharded group": job.compute_bytes * gathered,
        "reduce-scatter buffer": job.reduce_bytes * max(whole),
        "logits": 4 * job.tokens * job.vocab,
    }
