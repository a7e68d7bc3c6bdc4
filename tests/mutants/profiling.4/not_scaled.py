"""symptom: off by a constant factor"""

from torch.nn import functional as F


def answer(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
