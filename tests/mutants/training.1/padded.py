"""symptom: the tail is wrong

Pads the last shard with zeros to the size of the others, as only the buffer for the collective is.
"""


def answer(full, rank, world):
    size = -(-len(full) // world)
    shard = full.new_zeros(size, *full.shape[1:])
    rows = full[rank * size : (rank + 1) * size]
    shard[: len(rows)] = rows
    return shard
