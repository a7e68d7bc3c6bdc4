"""symptom: too much traffic

A loop that adds, then one that normalises: the sum is read again.
"""

import torch


def answer(x, residual, weight, eps, rows_at_once):
    normed, total = torch.empty_like(x), torch.empty_like(x)
    parts = [slice(start, start + rows_at_once) for start in range(0, len(x), rows_at_once)]
    for part in parts:
        total[part] = x[part].float() + residual[part].float()
    for part in parts:
        block = x[part].float() + residual[part].float() if x.dtype != torch.float32 else total[part]
        normed[part] = block * torch.rsqrt(block.square().mean(-1, keepdim=True) + eps) * weight.float()
    return normed, total
