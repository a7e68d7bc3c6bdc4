"""symptom: the tail is wrong

Rounds down, so the last rows belong to nobody.
"""


def answer(full, rank, world):
    size = len(full) // world
    return full[rank * size : (rank + 1) * size].clone()
