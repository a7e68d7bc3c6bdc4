"""symptom: wrong value"""

import torch


def answer(text, encode, context, batch):
    tokens, place = torch.tensor(encode(text)), 0
    while True:
        starts = [(place + row) % (len(tokens) - context) for row in range(batch)]
        place += batch
        block = torch.stack([tokens[start : start + context + 1] for start in starts])
        yield block[:, :-1].clone(), block[:, 1:].clone()
