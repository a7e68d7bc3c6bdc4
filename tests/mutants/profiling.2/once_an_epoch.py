"""symptom: does work again"""

import torch


def answer(text, encode, context, batch):
    waiting = []
    while True:
        tokens = torch.tensor(encode(text))
        for start in range(0, (len(tokens) - 1) // context * context, context):
            waiting.append(tokens[start : start + context + 1])
            if len(waiting) == batch:
                block = torch.stack(waiting)
                waiting = []
                yield block[:, :-1].clone(), block[:, 1:].clone()
