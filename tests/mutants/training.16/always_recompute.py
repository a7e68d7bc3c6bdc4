"""symptom: wrong value

Recomputes every block, whether or not memory is short.
"""

from itertools import product

from helpers.course.exercises.training.planning import Choice, outlook


def divisors(number):
    return [each for each in range(1, number + 1) if number % each == 0]


def answer(run):
    if run.batch % run.ranks:
        return None
    share = run.batch // run.ranks
    legal = [
        Choice(replicas, recompute, reshard, sequences, share // sequences)
        for replicas, recompute, reshard, sequences in product(
            divisors(run.ranks), [True], (True, False), divisors(share)
        )
    ]
    fitting = [choice for choice in legal if outlook(run, choice).memory <= (1 - run.headroom) * run.gpu.memory]
    return min(fitting, key=lambda choice: outlook(run, choice).seconds, default=None)
