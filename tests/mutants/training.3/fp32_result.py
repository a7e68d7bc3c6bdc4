"""symptom: wrong dtype

Collects into a tensor of the default dtype.
"""

import torch


def answer(shard, rank, world, send, receive):
    whole = torch.zeros(world, *shard.shape)
    whole[rank] = shard
    chunk = shard
    for step in range(world - 1):
        send(chunk, (rank + 1) % world)
        chunk = receive((rank - 1) % world)
        whole[(rank - step - 1) % world] = chunk
    return whole.flatten(0, 1)
