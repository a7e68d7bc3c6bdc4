"""symptom: waits too often"""


def answer(step, steps, every, report):
    losses = []
    for done in range(1, steps + 1):
        losses.append(step().detach())
        if done % every == 0 or done == steps:
            report(done, sum(loss.item() for loss in losses) / len(losses))
            losses = []
