"""symptom: the tail is wrong"""

import torch


def answer(text, encode, context, batch):
    tokens = torch.tensor(encode(text))
    windows, place = max(1, len(tokens) // context - 1), 0
    while True:
        starts = [(place + row) % windows * context for row in range(batch)]
        place += batch
        block = torch.stack([tokens[start : start + context + 1] for start in starts])
        yield block[:, :-1].clone(), block[:, 1:].clone()
