"""symptom: wrong value

Normalises before it adds.
"""

import torch


def answer(x, residual, weight, eps, rows_at_once):
    normed, total = torch.empty_like(x), torch.empty_like(x)
    for start in range(0, len(x), rows_at_once):
        part = slice(start, start + rows_at_once)
        block = x[part].float() + residual[part].float()
        total[part] = block
        alone = x[part].float()
        normed[part] = alone * torch.rsqrt(alone.square().mean(-1, keepdim=True) + eps) * weight.float()
    return normed, total
