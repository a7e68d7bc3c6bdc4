"""symptom: hangs

Receives once more than is sent.
"""

import torch


def answer(shard, rank, world, send, receive):
    chunks = [None] * world
    chunks[rank] = shard
    for step in range(world):
        if step < world - 1:
            send(chunks[(rank - step) % world], (rank + 1) % world)
        if world > 1:
            chunks[(rank - step - 1) % world] = receive((rank - 1) % world)
    return torch.cat(chunks)
