"""symptom: wrong shape

Cuts the last dimension.
"""


def answer(full, rank, world, send, receive):
    chunks = full.tensor_split(world, dim=-1)
    part = chunks[(rank - 1) % world].clone()
    for step in range(world - 1):
        send(part, (rank + 1) % world)
        part = receive((rank - 1) % world) + chunks[(rank - step - 2) % world]
    return part
