"""symptom: too many launches"""

import torch


def answer(q, k, v):
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    mask = torch.zeros_like(scores)
    for t in range(q.shape[2]):
        mask[..., t, t + 1 :] = float("-inf")
    return (scores + mask).softmax(dim=-1) @ v
