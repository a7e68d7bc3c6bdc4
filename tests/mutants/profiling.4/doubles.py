"""symptom: wrong dtype"""

from torch.nn import functional as F


def answer(q, k, v):
    return F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
