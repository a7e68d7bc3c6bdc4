"""symptom: off by one"""

import torch


def answer(text, encode, context, batch):
    tokens = torch.tensor(encode(text))
    windows, place = (len(tokens) - 1) // context, 0
    while True:
        starts = [(place + row) % windows * context for row in range(batch)]
        place += batch
        block = torch.stack([tokens[start : start + context] for start in starts])
        yield block, block.clone()
