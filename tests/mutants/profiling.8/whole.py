"""symptom: too much traffic

Everything at once, one operator after the other.
"""

import torch


def answer(x, residual, weight, eps, rows_at_once):
    total = x.float() + residual.float()
    normed = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + eps) * weight.float()
    return normed.to(x.dtype), total.to(x.dtype)
