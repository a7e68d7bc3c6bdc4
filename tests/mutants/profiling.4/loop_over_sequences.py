"""symptom: too many launches"""

import torch
from torch.nn import functional as F


def answer(q, k, v):
    rows = [F.scaled_dot_product_attention(*(x[b : b + 1] for x in (q, k, v)), is_causal=True) for b in range(len(q))]
    return torch.cat(rows)
