"""symptom: wrong shape"""

from torch.nn import functional as F


def answer(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
