"""symptom: the input was changed

Receives into the tensor that it was given.
"""

import torch


def answer(shard, rank, world, send, receive):
    chunks = [None] * world
    chunks[rank] = shard.clone()
    for step in range(world - 1):
        send(shard, (rank + 1) % world)
        shard.copy_(receive((rank - 1) % world))
        chunks[(rank - step - 1) % world] = shard.clone()
    return torch.cat(chunks)
