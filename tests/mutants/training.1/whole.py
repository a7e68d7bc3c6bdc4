"""symptom: not sharded

Every rank keeps everything, as DDP does.
"""


def answer(full, rank, world):
    return full.clone()
