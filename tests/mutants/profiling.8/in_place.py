"""symptom: the input was changed

Adds into x.
"""

import torch


def answer(x, residual, weight, eps, rows_at_once):
    normed = torch.empty_like(x)
    for start in range(0, len(x), rows_at_once):
        block = x[start : start + rows_at_once].add_(residual[start : start + rows_at_once])
        root = torch.rsqrt(block.float().square().mean(-1, keepdim=True) + eps)
        normed[start : start + rows_at_once] = block.float() * root * weight.float()
    return normed, x
