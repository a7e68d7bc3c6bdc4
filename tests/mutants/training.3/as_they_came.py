"""symptom: wrong value

Chunks in the order of arrival, its own first.
"""

import torch


def answer(shard, rank, world, send, receive):
    chunks = [shard]
    for _ in range(world - 1):
        send(chunks[-1], (rank + 1) % world)
        chunks.append(receive((rank - 1) % world))
    return torch.cat(chunks)
