"""symptom: not freed

On one rank the chunk is a view of the tensor that was given.
"""


def answer(full, rank, world, send, receive):
    chunks = full.chunk(world)
    passing = chunks[(rank - 1) % world]
    for step in range(world - 1):
        send(passing, (rank + 1) % world)
        passing = receive((rank - 1) % world) + chunks[(rank - step - 2) % world]
    return passing
