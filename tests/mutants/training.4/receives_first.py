"""symptom: hangs

Every rank waits before it sends.
"""


def answer(full, rank, world, send, receive):
    chunks = full.chunk(world)
    part = chunks[(rank - 1) % world].clone()
    for step in range(world - 1):
        came = receive((rank - 1) % world)
        send(part, (rank + 1) % world)
        part = came + chunks[(rank - step - 2) % world]
    return part
