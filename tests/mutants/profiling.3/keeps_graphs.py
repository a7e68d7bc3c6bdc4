"""symptom: not freed"""

import torch


def answer(step, steps, every, report):
    losses = []
    for done in range(1, steps + 1):
        losses.append(step())
        if done % every == 0 or done == steps:
            report(done, torch.stack(losses).mean().item())
            losses = []
