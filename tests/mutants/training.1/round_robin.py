"""symptom: wrong value

Deals the rows out one by one.
"""


def answer(full, rank, world):
    return full[rank::world].clone()
