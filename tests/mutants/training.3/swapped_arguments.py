"""symptom: wrong interface

Sends the rank to the tensor.
"""

import torch


def answer(shard, rank, world, send, receive):
    chunks = [None] * world
    chunks[rank] = shard
    for step in range(world - 1):
        send((rank + 1) % world, chunks[(rank - step) % world])
        source = (rank - step - 1) % world
        chunks[source] = receive((rank - 1) % world)
    return torch.cat(chunks)
