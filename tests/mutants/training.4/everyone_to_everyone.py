"""symptom: too much traffic

Sends each chunk straight to its owner.
"""


def answer(full, rank, world, send, receive):
    chunks = full.chunk(world)
    others = [other for other in range(world) if other != rank]
    for other in others:
        send(chunks[other], other)
    part = chunks[rank].clone()
    for other in others:
        part += receive(other)
    return part
