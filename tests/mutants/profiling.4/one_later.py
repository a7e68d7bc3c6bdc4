"""symptom: off by one"""

import torch


def answer(q, k, v):
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    later = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(2)
    return scores.masked_fill(later, float("-inf")).softmax(dim=-1) @ v
