"""symptom: wrong type

Returns rows as a list.
"""


def answer(full, rank, world):
    size = -(-len(full) // world)
    return list(full[rank * size : (rank + 1) * size])
