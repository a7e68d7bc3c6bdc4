"""symptom: not a number"""


def answer(q, k, v):
    scores = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).exp().tril()
    return scores / scores.sum(dim=-1, keepdim=True) @ v
