"""symptom: too much traffic

One step too many: every chunk comes home again.
"""

import torch


def answer(shard, rank, world, send, receive):
    chunks = [None] * world
    chunks[rank] = shard
    for step in range(world):
        if world > 1:
            send(chunks[(rank - step) % world], (rank + 1) % world)
            chunks[(rank - step - 1) % world] = receive((rank - 1) % world)
    return torch.cat(chunks)
