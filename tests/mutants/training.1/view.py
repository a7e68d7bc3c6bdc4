"""symptom: not freed

Returns a view, which keeps the whole parameter in memory.
"""


def answer(full, rank, world):
    size = -(-len(full) // world)
    return full[rank * size : (rank + 1) * size]
