"""symptom: wrong value

Sends its own chunk first, and then adds as if it had not.
"""


def answer(full, rank, world, send, receive):
    chunks = full.chunk(world)
    part = chunks[(rank) % world].clone()
    for step in range(world - 1):
        send(part, (rank + 1) % world)
        part = receive((rank - 1) % world) + chunks[(rank - step - 2) % world]
    return part
