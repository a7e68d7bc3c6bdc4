"""symptom: trains nothing

The optimizer never steps.
"""

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F

from helpers.course.museum.bench import average, whole


def answer(build, batches, mesh):
    rank = mesh.get_local_rank()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = fully_shard(build(), mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.003)
    losses = []
    for inputs, targets in batches:
        inputs, targets = inputs.chunk(2)[rank], targets.chunk(2)[rank]
        loss = F.mse_loss(model(inputs).float(), targets)
        loss.backward()
        optimizer.zero_grad()
        losses.append(average(loss))
    return losses, whole(model)
