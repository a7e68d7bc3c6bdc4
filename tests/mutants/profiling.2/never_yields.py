"""symptom: hangs"""

import torch


def answer(text, encode, context, batch):
    tokens = torch.tensor(encode(text))
    waiting = []
    while True:
        waiting = [tokens[:context]] * batch
    yield waiting
