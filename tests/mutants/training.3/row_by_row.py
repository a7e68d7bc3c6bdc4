"""symptom: too much traffic

A message for each row.
"""

import torch


def answer(shard, rank, world, send, receive):
    chunks = [None] * world
    chunks[rank] = shard
    for step in range(world - 1):
        for row in chunks[(rank - step) % world].split(1):
            send(row, (rank + 1) % world)
        chunks[(rank - step - 1) % world] = torch.cat([receive((rank - 1) % world) for _ in range(len(shard))])
    return torch.cat(chunks)
