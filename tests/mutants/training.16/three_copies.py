"""symptom: wrong shape

Makes three copies, whatever the number of ranks.
"""

from helpers.course.exercises.training.planning import Choice


def answer(run):
    return Choice(replicas=3, recompute=True, micro_batches=run.batch // run.ranks)
