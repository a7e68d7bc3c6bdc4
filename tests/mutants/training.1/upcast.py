"""symptom: wrong dtype

Makes every shard fp32.
"""


def answer(full, rank, world):
    size = -(-len(full) // world)
    return full[rank * size : (rank + 1) * size].clone().float()
