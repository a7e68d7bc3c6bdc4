"""symptom: wrong value"""


def answer(q, k, v):
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    return scores.tril().softmax(dim=-1) @ v
