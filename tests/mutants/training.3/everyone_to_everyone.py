"""symptom: too much traffic

Right, with as few bytes, but not over a ring.
"""

import torch


def answer(shard, rank, world, send, receive):
    others = [other for other in range(world) if other != rank]
    for other in others:
        send(shard, other)
    return torch.cat([shard if source == rank else receive(source) for source in range(world)])
