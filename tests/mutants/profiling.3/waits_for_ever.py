"""symptom: hangs"""


def answer(step, steps, every, report):
    while step() is not None:
        pass
