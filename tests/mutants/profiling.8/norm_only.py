"""symptom: wrong type

Keeps the sum to itself.
"""

import torch


def answer(x, residual, weight, eps, rows_at_once):
    normed, total = torch.empty_like(x), torch.empty_like(x)
    for start in range(0, len(x), rows_at_once):
        part = slice(start, start + rows_at_once)
        block = x[part].float() + residual[part].float()
        total[part] = block
        root = torch.rsqrt(block.square().mean(-1, keepdim=True) + eps)
        normed[part] = block * root * weight.float()
    return normed
