"""symptom: not sharded

Sums everything, as an all-reduce does, and keeps it all.
"""


def answer(full, rank, world, send, receive):
    total, passing = full.clone(), full
    for _ in range(world - 1):
        send(passing, (rank + 1) % world)
        passing = receive((rank - 1) % world)
        total += passing
    return total
