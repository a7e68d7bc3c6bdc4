"""symptom: not freed

Returns a view into a copy of the whole tensor.
"""


def answer(full, rank, world, send, receive):
    chunks = full.clone().chunk(world)
    for step in range(world - 1):
        send(chunks[(rank - step - 1) % world], (rank + 1) % world)
        chunks[(rank - step - 2) % world].add_(receive((rank - 1) % world))
    return chunks[rank]
