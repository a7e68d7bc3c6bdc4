"""symptom: wrong value

Both ranks read the first half.
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
        share = len(inputs) // mesh.size()
        inputs, targets = inputs[:share], targets[:share]
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(average(loss))
    return losses, whole(model)
