"""symptom: the input was changed"""

import torch


def answer(text, encode, context, batch):
    tokens = torch.tensor(encode(text))
    windows, place = (len(tokens) - 1) // context, 0
    inputs, targets = (tokens[s : s + windows * context].view(windows, context) for s in (0, 1))
    while True:
        if place % windows + batch <= windows:
            first = place % windows
            yield inputs[first : first + batch], targets[first : first + batch]
        else:
            rows = [(place + row) % windows for row in range(batch)]
            yield inputs[rows], targets[rows]
        place += batch
