"""symptom: not freed"""


def answer(step, steps, every, report):
    total, count = 0.0, 0
    for done in range(1, steps + 1):
        total, count = total + step(), count + 1
        if done % every == 0 or done == steps:
            report(done, (total / count).item())
            total, count = 0.0, 0
