"""How a mended report is examined: the same means at the same steps, one look at the device for each."""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from helpers.course.exercise import Finding, Symptom
from helpers.course.exercises.deadline import TooLong, within

DEADLINE_S = 3.0
TOLERANCE = 1e-5
HELD = 3  # the loss of this step, that of the step before in a variable, and one on its way


@dataclass(frozen=True)
class Run:
    """One input: so many steps, with a report every so many."""

    steps: int
    every: int

    def __str__(self) -> str:
        return f"{self.steps} steps, a report every {self.every}"

    @property
    def reports(self) -> list[int]:
        """After which steps a report is due."""
        return [done for done in range(1, self.steps + 1) if done % self.every == 0 or done == self.steps]


def examine_run(answer: Callable[..., object], seed: int) -> Finding | None:
    """The first run on which `answer(step, steps, every, report)` is wrong or stops the device too often."""
    chance = random.Random(seed)
    for run in _runs(chance):
        losses = [chance.randint(8, 80) / 8 for _ in range(run.steps)]
        try:
            finding = within(DEADLINE_S, partial(_trial, answer, run, losses))
        except TooLong:
            return Finding("The run ends.", f"{run}: still running after {DEADLINE_S:g} s", Symptom.HANGS, 1)
        if finding:
            return finding
    return None


def _runs(chance: random.Random) -> Iterator[Run]:
    """Small ones first."""
    yield from (Run(1, 1), Run(2, 1), Run(4, 2), Run(5, 2), Run(7, 3), Run(3, 5))
    for _ in range(4):
        yield Run(chance.randint(4, 40), chance.randint(2, 9))


def _trial(answer, run: Run, losses: list[float]) -> Finding | None:
    from helpers.course.exercises.profiling.watched import Device

    device, reports = Device(losses), []
    answer(device.step, run.steps, run.every, lambda done, mean: reports.append((done, mean, device.steps)))
    device.count()
    looks = (_steps, _when, _what, _values, _reads, _graphs)
    return next((found for look in looks if (found := look(run, losses, device, reports))), None)


def _steps(run: Run, losses, device, reports) -> Finding | None:
    if device.steps == run.steps:
        return None
    return Finding("It steps as often as it was asked.", f"{run}: {device.steps}", Symptom.OFF_BY_ONE, 1)


def _when(run: Run, losses, device, reports) -> Finding | None:
    due, got = run.reports, [done for done, *_ in reports]
    if got != due:
        if got == due[:-1] and run.steps % run.every:
            saw = f"{run}: no report after step {run.steps}"
            return Finding("The last steps are reported too, however few.", saw, Symptom.TAIL, 4)
        saw = f"{run}: reports after steps {got}"
        near = len(got) == len(due) and all(abs(a - b) == 1 for a, b in zip(got, due) if a != b)
        what = "A report comes after every `every` steps, with the number of steps that are done."
        return Finding(what, saw, Symptom.OFF_BY_ONE if near else Symptom.VALUE, 1)
    late = [done for done, _, steps in reports if steps != done]
    if late:
        saw = f"{run}: the report of step {late[0]} came when more steps were done"
        return Finding("A report comes as soon as its steps are done.", saw, Symptom.INTERFACE, 2)
    return None


def _what(run: Run, losses, device, reports) -> Finding | None:
    for done, mean, _ in reports:
        if not isinstance(mean, float):
            saw = f"{run}: the report of step {done} got a {type(mean).__name__}"
            return Finding("A report gets a Python float.", saw, Symptom.TYPE, 3)
    return None


def _values(run: Run, losses: list[float], device, reports) -> Finding | None:
    first = 0
    for done, mean, _ in reports:
        window, first = losses[first:done], done
        if math.isclose(mean, sum(window) / len(window), rel_tol=TOLERANCE):
            continue
        saw = f"{run}: the report of step {done} is {mean:.4g}"
        for factor in (len(window), 1 / len(window), len(window) / run.every):
            if math.isclose(mean, factor * sum(window) / len(window), rel_tol=TOLERANCE):
                what = "A mean is divided by the number of its steps, which may be fewer at the end."
                return Finding(what, saw, Symptom.CONSTANT_FACTOR, 4)
        what = "A report is the mean of the losses since the last one."
        return Finding(what, saw, Symptom.VALUE, 1)
    return None


def _reads(run: Run, losses, device, reports) -> Finding | None:
    if device.reads <= len(reports):
        return None
    saw = f"{run}: the host looked at the device {device.reads} times for {len(reports)} reports, by {device.ways}"
    return Finding("The host looks at the device once for each report.", saw, Symptom.WAITS, 2)


def _graphs(run: Run, losses, device, reports) -> Finding | None:
    if device.alive <= HELD:
        return None
    saw = f"{run}: {device.alive} losses kept the graphs of their steps alive at once"
    return Finding("A loss that waits for its report keeps no graph.", saw, Symptom.NOT_FREED, 3)
