"""symptom: wrong interface

Counts the micro-batches after the first.
"""

from helpers.course.exercises.training.planning import Choice


def answer(run):
    return Choice(sequences=run.batch // run.ranks, micro_batches=0)
