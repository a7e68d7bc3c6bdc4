"""symptom: off by one

Takes the end of a slice for its last row.
"""


def answer(full, rank, world):
    size = -(-len(full) // world)
    return full[rank * size : (rank + 1) * size - 1].clone()
