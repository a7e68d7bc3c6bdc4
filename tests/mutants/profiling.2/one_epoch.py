"""symptom: the tail is wrong"""

import torch


def answer(text, encode, context, batch):
    tokens = torch.tensor(encode(text))
    windows = (len(tokens) - 1) // context
    for first in range(0, windows - batch + 1, batch):
        block = torch.stack([tokens[w * context : w * context + context + 1] for w in range(first, first + batch)])
        yield block[:, :-1].clone(), block[:, 1:].clone()
