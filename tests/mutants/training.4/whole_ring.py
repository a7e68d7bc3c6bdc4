"""symptom: too much traffic

Sends the whole tensor round, and keeps one chunk of the sum.
"""


def answer(full, rank, world, send, receive):
    total, passing = full.clone(), full
    for _ in range(world - 1):
        send(passing, (rank + 1) % world)
        passing = receive((rank - 1) % world)
        total += passing
    return total.chunk(world)[rank].clone()
