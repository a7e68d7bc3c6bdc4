"""symptom: not deterministic"""

import random

import torch


def answer(text, encode, context, batch):
    tokens = torch.tensor(encode(text))
    windows = (len(tokens) - 1) // context
    while True:
        starts = [random.randrange(windows) * context for _ in range(batch)]
        block = torch.stack([tokens[start : start + context + 1] for start in starts])
        yield block[:, :-1].clone(), block[:, 1:].clone()
