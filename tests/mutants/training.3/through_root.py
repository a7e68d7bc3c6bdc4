"""symptom: too much traffic

Rank 0 gathers, and sends the whole to everyone.
"""

import torch


def answer(shard, rank, world, send, receive):
    if rank:
        send(shard, 0)
        return receive(0)
    whole = torch.cat([shard, *(receive(source) for source in range(1, world))])
    for other in range(1, world):
        send(whole, other)
    return whole
