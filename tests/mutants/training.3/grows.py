"""symptom: too much traffic

Passes on everything that it has so far.
"""

import torch


def answer(shard, rank, world, send, receive):
    got = shard
    for _ in range(world - 1):
        send(got, (rank + 1) % world)
        got = torch.cat([receive((rank - 1) % world), shard])
    return got.roll((rank + 1) % world * len(shard), dims=0)
