"""symptom: too many launches"""

import math

import torch


def answer(q, k, v):
    mixed = []
    for t in range(q.shape[2]):
        scores = q[:, :, t : t + 1] @ k[:, :, : t + 1].transpose(-2, -1) / math.sqrt(q.shape[-1])
        mixed.append(scores.softmax(dim=-1) @ v[:, :, : t + 1])
    return torch.cat(mixed, dim=2)
