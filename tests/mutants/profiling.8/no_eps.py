"""symptom: not a number

A row of zeros becomes 0 / 0.
"""

import torch


def answer(x, residual, weight, eps, rows_at_once):
    normed, total = torch.empty_like(x), torch.empty_like(x)
    for start in range(0, len(x), rows_at_once):
        part = slice(start, start + rows_at_once)
        block = x[part].float() + residual[part].float()
        total[part] = block
        root = torch.rsqrt(block.square().mean(-1, keepdim=True))
        normed[part] = block * root * weight.float()
    return normed, total
