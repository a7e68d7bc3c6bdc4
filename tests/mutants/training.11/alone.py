"""symptom: not sharded

Every rank trains the whole model on all rows.
"""

import torch
from torch.nn import functional as F


def answer(build, batches, mesh):
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for inputs, targets in batches:
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses, dict(model.named_parameters())
