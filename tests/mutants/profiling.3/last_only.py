"""symptom: wrong value"""


def answer(step, steps, every, report):
    for done in range(1, steps + 1):
        loss = step().detach()
        if done % every == 0 or done == steps:
            report(done, loss.item())
