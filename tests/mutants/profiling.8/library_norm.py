"""symptom: too much traffic

The library's norm after a whole sum.
"""

from torch.nn import functional as F


def answer(x, residual, weight, eps, rows_at_once):
    total = x.float() + residual.float()
    return F.rms_norm(total, (x.shape[1],), weight.float(), eps).to(x.dtype), total.to(x.dtype)
