"""symptom: hangs

The step never grows, so the ring turns for ever.
"""

import torch


def answer(shard, rank, world, send, receive):
    chunks, step = [shard] * world, 0
    while step < world - 1:
        send(chunks[(rank - step) % world], (rank + 1) % world)
        chunks[(rank - step - 1) % world] = receive((rank - 1) % world)
    return torch.cat(chunks)
