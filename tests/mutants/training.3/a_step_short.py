"""symptom: off by one

One step too few: a chunk stays empty.
"""

import torch


def answer(shard, rank, world, send, receive):
    chunks = [torch.zeros_like(shard) for _ in range(world)]
    chunks[rank] = shard
    for step in range(world - 2):
        send(chunks[(rank - step) % world], (rank + 1) % world)
        chunks[(rank - step - 1) % world] = receive((rank - 1) % world)
    return torch.cat(chunks)
