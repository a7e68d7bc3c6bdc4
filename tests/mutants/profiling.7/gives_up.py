"""symptom: wrong value

The rule is taken to be always right.
"""


def answer(record, said, limiter):
    return None
