"""symptom: wrong interface

Forgets that the ring is closed.
"""


def answer(full, rank, world, send, receive):
    chunks = full.chunk(world)
    part = chunks[(rank - 1) % world].clone()
    for step in range(world - 1):
        send(part, rank + 1)
        part = receive(rank - 1) + chunks[(rank - step - 2) % world]
    return part
