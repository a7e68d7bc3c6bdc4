"""symptom: wrong interface

Forgets that the ring is closed.
"""

import torch


def answer(shard, rank, world, send, receive):
    chunks = [None] * world
    chunks[rank] = shard
    for step in range(world - 1):
        send(chunks[(rank - step) % world], rank + 1)
        chunks[(rank - step - 1) % world] = receive(rank - 1)
    return torch.cat(chunks)
