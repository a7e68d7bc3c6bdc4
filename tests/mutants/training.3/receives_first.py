"""symptom: hangs

Every rank waits before it sends.
"""

import torch


def answer(shard, rank, world, send, receive):
    chunks = [None] * world
    chunks[rank] = shard
    for step in range(world - 1):
        chunks[(rank - step - 1) % world] = receive((rank - 1) % world)
        send(chunks[(rank - step) % world], (rank + 1) % world)
    return torch.cat(chunks)
