"""symptom: off by a constant factor

Believes that the ranks of one copy read the same data.
"""

from itertools import product

from helpers.course.exercises.training.planning import Choice, outlook


def divisors(number):
    return [each for each in range(1, number + 1) if number % each == 0]


def answer(run):

    share = run.batch
    legal = [
        Choice(replicas, recompute, reshard, sequences, max(1, share // replicas // sequences))
        for replicas, recompute, reshard, sequences in product(
            divisors(run.ranks), (False, True), (True, False), divisors(share)
        )
    ]
    fitting = [choice for choice in legal if outlook(run, choice).memory <= (1 - run.headroom) * run.gpu.memory]
    return min(fitting, key=lambda choice: outlook(run, choice).seconds, default=None)
