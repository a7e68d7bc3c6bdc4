"""symptom: wrong value

Inputs and targets are cut in different ways.
"""

import torch
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

from helpers.course.museum.bench import average, whole


def answer(build, batches, mesh):
    model = fully_shard(build(), mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for inputs, targets in batches:
        rank = mesh.get_local_rank()
        inputs, targets = inputs.chunk(2)[rank], targets[rank::2]
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(average(loss))
    return losses, whole(model)
