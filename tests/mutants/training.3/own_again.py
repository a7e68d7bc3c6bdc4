"""symptom: wrong value

Passes on its own chunk in every step.
"""

import torch


def answer(shard, rank, world, send, receive):
    chunks = [None] * world
    chunks[rank] = shard
    for step in range(world - 1):
        send(shard, (rank + 1) % world)
        chunks[(rank - step - 1) % world] = receive((rank - 1) % world)
    return torch.cat(chunks)
