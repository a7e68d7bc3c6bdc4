"""symptom: off by one"""

import torch


def answer(step, steps, every, report):
    losses = []
    for index in range(steps):
        losses.append(step().detach())
        if (index + 1) % every == 0 or index == steps - 1:
            report(index, torch.stack(losses).mean().item())
            losses = []
