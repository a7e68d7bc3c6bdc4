"""symptom: wrong type

Returns the last loss only.
"""

import torch
from torch.distributed.fsdp import fully_shard

from helpers.course.museum.bench import total, whole


def answer(build, batches, mesh):
    rank = mesh.get_local_rank()
    model = fully_shard(build(), mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for inputs, targets in batches:
        rows = len(inputs)
        inputs, targets = inputs.chunk(2)[rank], targets.chunk(2)[rank]
        per_row = (model(inputs) - targets).square().mean(1)
        (per_row.sum() * 2 / rows).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total(per_row.sum()) / rows)
    return losses[-1], whole(model)
