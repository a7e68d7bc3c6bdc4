"""symptom: wrong type"""


def answer(text, encode, context, batch):
    tokens = encode(text)
    windows, place = (len(tokens) - 1) // context, 0
    while True:
        starts = [(place + row) % windows * context for row in range(batch)]
        place += batch
        yield [tokens[s : s + context] for s in starts], [tokens[s + 1 : s + context + 1] for s in starts]
