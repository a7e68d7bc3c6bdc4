"""symptom: too many launches"""

import torch
from torch.nn import functional as F


def answer(q, k, v):
    heads = [F.scaled_dot_product_attention(q[:, h], k[:, h], v[:, h], is_causal=True) for h in range(q.shape[1])]
    return torch.stack(heads, dim=1)
