"""symptom: aborts

Sixteen losses meet fifteen in one all-gather.
"""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from helpers.course.museum.bench import whole


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
        everyone = [torch.empty_like(per_row) for _ in range(2)]
        dist.all_gather(everyone, per_row.detach())
        losses.append(float(torch.cat(everyone).mean()))
    return losses, whole(model)
