"""symptom: the input was changed

Inputs and targets are two views of one window.
"""

import itertools

import torch


def answer(text, encode, context, batch):
    tokens = torch.tensor(encode(text))
    windows = (len(tokens) - 1) // context
    places = itertools.cycle(range(windows))
    while True:
        rows = [tokens[context * place : context * place + context + 1] for place in itertools.islice(places, batch)]
        both = torch.stack(rows)
        yield both[:, :-1], both[:, 1:]
