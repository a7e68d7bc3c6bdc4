"""symptom: the input was changed"""

import torch
from torch.nn import functional as F


def answer(q, k, v):
    with torch.no_grad():
        q /= q.shape[-1] ** 0.5
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
