"""symptom: the input was changed

Frees the rest of the parameter by zeroing it.
"""


def answer(full, rank, world):
    size = -(-len(full) // world)
    shard = full[rank * size : (rank + 1) * size].clone()
    full.zero_()
    return shard
