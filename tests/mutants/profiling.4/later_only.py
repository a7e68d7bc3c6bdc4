"""symptom: wrong value"""

import torch


def answer(q, k, v):
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    earlier = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril(-1)
    return scores.masked_fill(earlier, float("-inf")).softmax(dim=-1) @ v
