"""symptom: wrong value

Both ranks are given the first rows.
"""

import torch
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

from helpers.course.museum.bench import average, whole


def answer(build, batches, mesh):
    rank, saved = mesh.get_local_rank(), build.saved()
    with torch.device("meta"):
        model = build()
    fully_shard(model, mesh=mesh).to_empty(device="cpu")
    for name, weight in model.named_parameters():
        weight.data.to_local().copy_(saved[name].chunk(2)[0])
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
