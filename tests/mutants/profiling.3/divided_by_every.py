"""symptom: off by a constant factor"""


def answer(step, steps, every, report):
    total = 0.0
    for done in range(1, steps + 1):
        total = total + step().detach()
        if done % every == 0 or done == steps:
            report(done, (total / every).item())
            total = 0.0
