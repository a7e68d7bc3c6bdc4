"""symptom: wrong dtype

Squares and means of bf16 in bf16.
"""

import torch


def answer(x, residual, weight, eps, rows_at_once):
    normed, total = torch.empty_like(x), torch.empty_like(x)
    for start in range(0, len(x), rows_at_once):
        part = slice(start, start + rows_at_once)
        block = x[part] + residual[part]
        total[part] = block
        root = torch.rsqrt(block.square().mean(-1, keepdim=True) + eps)
        normed[part] = block * root * weight
    return normed, total
