"""symptom: does work again"""

import torch


def answer(text, encode, context, batch):
    windows, place = (len(text) - 1) // context, 0
    while True:
        starts = [(place + row) % windows * context for row in range(batch)]
        place += batch
        block = torch.tensor([encode(text[start : start + context + 1]) for start in starts])
        yield block[:, :-1].clone(), block[:, 1:].clone()
