"""symptom: hangs

A block that does not move on.
"""

import torch


def answer(x, residual, weight, eps, rows_at_once):
    normed, total = torch.empty_like(x), torch.empty_like(x)
    start = 0
    while start < len(x):
        part = slice(start, start + rows_at_once)
        total[part] = x[part] + residual[part]
    return normed, total
