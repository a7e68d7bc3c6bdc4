"""symptom: trains nothing"""

import torch
from torch.nn import functional as F


def answer(q, k, v):
    with torch.no_grad():
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
