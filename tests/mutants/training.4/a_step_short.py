"""symptom: wrong value

One step too few: a rank's share is missing, and the chunk is another's.
"""


def answer(full, rank, world, send, receive):
    chunks = full.chunk(world)
    part = chunks[(rank - 1) % world].clone()
    for step in range(world - 2):
        send(part, (rank + 1) % world)
        part = receive((rank - 1) % world) + chunks[(rank - step - 2) % world]
    return part
