"""symptom: wrong interface"""

import torch


def answer(step, steps, every, report):
    losses = torch.stack([step().detach() for _ in range(steps)]).tolist()
    for done in range(1, steps + 1):
        if done % every == 0 or done == steps:
            first = (done - 1) // every * every
            report(done, sum(losses[first:done]) / (done - first))
