"""symptom: off by one

Starts with its own chunk, so that rank r ends with chunk r + 1.
"""


def answer(full, rank, world, send, receive):
    chunks = full.chunk(world)
    part = chunks[(rank) % world].clone()
    for step in range(world - 1):
        send(part, (rank + 1) % world)
        part = receive((rank - 1) % world) + chunks[(rank - step - 1) % world]
    return part
