"""symptom: the tail is wrong

Spreads the remainder over the first ranks, as numpy.array_split does.
"""

import numpy


def answer(full, rank, world):
    rows = numpy.array_split(numpy.arange(len(full)), world)[rank]
    return full[rows[0] : rows[-1] + 1].clone() if len(rows) else full[:0].clone()
