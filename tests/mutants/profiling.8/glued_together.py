"""symptom: too much traffic

Blocks in a list, copied into one tensor at the end.
"""

import torch


def answer(x, residual, weight, eps, rows_at_once):
    normed, total = [], []
    for a, b in zip(x.split(rows_at_once), residual.split(rows_at_once)):
        block = a.float() + b.float()
        total.append(block.to(x.dtype))
        normed.append((block * torch.rsqrt(block.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype))
    return torch.cat(normed), torch.cat(total)
