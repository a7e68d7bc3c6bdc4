"""symptom: off by a constant factor

The loss that is logged is halved twice.
"""

import torch
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

from helpers.course.museum.bench import average, whole


def answer(build, batches, mesh):
    rank = mesh.get_local_rank()
    model = fully_shard(build(), mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for inputs, targets in batches:
        inputs, targets = inputs.chunk(2)[rank], targets.chunk(2)[rank]
        step_loss = 0.0
        for few, wanted in zip(inputs.chunk(2), targets.chunk(2)):
            loss = F.mse_loss(model(few), wanted) / 2
            loss.backward()
            step_loss += average(loss) / 2
        optimizer.step()
        optimizer.zero_grad()
        losses.append(step_loss)
    return losses, whole(model)
