"""symptom: wrong device

Makes an empty shard on the default device.
"""

import torch


def answer(full, rank, world):
    size = -(-len(full) // world)
    if rank * size >= len(full):
        return torch.empty(0, *full.shape[1:], dtype=full.dtype)
    return full[rank * size : (rank + 1) * size].clone()
