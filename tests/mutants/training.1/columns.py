"""symptom: wrong shape

Cuts the last dimension.
"""


def answer(full, rank, world):
    size = -(-full.shape[-1] // world)
    return full[..., rank * size : (rank + 1) * size].clone()
