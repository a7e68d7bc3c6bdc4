"""symptom: hangs

Waits in a loop that nothing ends.
"""


def answer(full, rank, world, send, receive):
    part, steps = full.chunk(world)[rank].clone(), 0
    while steps < world - 1:
        pass
    return part
