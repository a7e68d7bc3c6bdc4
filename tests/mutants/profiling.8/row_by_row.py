"""symptom: too many launches

One row at a time.
"""

import torch


def answer(x, residual, weight, eps, rows_at_once):
    normed, total = torch.empty_like(x), torch.empty_like(x)
    for start in range(len(x)):
        part = slice(start, start + 1)
        block = x[part].float() + residual[part].float()
        total[part] = block
        root = torch.rsqrt(block.square().mean(-1, keepdim=True) + eps)
        normed[part] = block * root * weight.float()
    return normed, total
