"""symptom: the ranks differ

A barrier makes the ranks wait, not agree.
"""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

from helpers.course.museum.bench import average, whole


def answer(build, batches, mesh):
    rank = mesh.get_local_rank()
    model = build(rank)
    dist.barrier()
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for inputs, targets in batches:
        inputs, targets = inputs.chunk(2)[rank], targets.chunk(2)[rank]
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(average(loss))
    return losses, whole(model)
