"""symptom: does work again"""

import torch


def answer(text, encode, context, batch):
    place = 0
    while True:
        tokens = torch.tensor(encode(text))
        windows = (len(tokens) - 1) // context
        starts = [(place + row) % windows * context for row in range(batch)]
        place += batch
        block = torch.stack([tokens[start : start + context + 1] for start in starts])
        yield block[:, :-1].clone(), block[:, 1:].clone()
