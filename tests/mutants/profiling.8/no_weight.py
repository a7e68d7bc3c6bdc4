"""symptom: wrong value

Forgets the weight.
"""

import torch


def answer(x, residual, weight, eps, rows_at_once):
    normed, total = torch.empty_like(x), torch.empty_like(x)
    for start in range(0, len(x), rows_at_once):
        part = slice(start, start + rows_at_once)
        block = x[part].float() + residual[part].float()
        total[part] = block
        normed[part] = block * torch.rsqrt(block.square().mean(-1, keepdim=True) + eps)
    return normed, total
