"""symptom: hangs

Rounds rows up in a loop that never moves.
"""


def answer(job):
    rows = job.root[0][0] + 1
    while rows % job.ranks:
        rows + 1
    return {}
