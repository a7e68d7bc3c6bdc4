"""symptom: the tail is wrong

Whole blocks only.
"""

import torch


def answer(x, residual, weight, eps, rows_at_once):
    normed, total = torch.zeros_like(x), torch.zeros_like(x)
    for number in range(max(1, len(x) // rows_at_once)):
        part = slice(number * rows_at_once, (number + 1) * rows_at_once)
        block = x[part].float() + residual[part].float()
        total[part] = block
        root = torch.rsqrt(block.square().mean(-1, keepdim=True) + eps)
        normed[part] = block * root * weight.float()
    return normed, total
