"""symptom: waits too often"""


def answer(step, steps, every, report):
    losses = []
    for done in range(1, steps + 1):
        losses.append(step().item())
        if done % every == 0 or done == steps:
            report(done, sum(losses) / len(losses))
            losses = []
