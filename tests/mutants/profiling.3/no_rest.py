"""symptom: the tail is wrong"""

import torch


def answer(step, steps, every, report):
    losses = []
    for done in range(1, steps + 1):
        losses.append(step().detach())
        if done % every == 0:
            report(done, torch.stack(losses).mean().item())
            losses = []
