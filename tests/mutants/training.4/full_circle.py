"""symptom: too much traffic

Lets the finished sum travel once round the ring.
"""


def answer(full, rank, world, send, receive):
    chunks = full.chunk(world)
    part = chunks[(rank - 1) % world].clone()
    for step in range(2 * world - 1 if world > 1 else 0):
        send(part, (rank + 1) % world)
        part = receive((rank - 1) % world)
        if step < world - 1:
            part = part + chunks[(rank - step - 2) % world]
    return part
