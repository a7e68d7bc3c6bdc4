import re

import pytest

from helpers.course import checks
from helpers.course.checks import CHECK_KEY, CheckError, State, all_exercises, check, find_exercise, hint, judge
from helpers.course.exercise import Exercise, Finding, Symptom


def examine_double(answer, seed):
    got = answer(seed % 7 + 1)
    if got != 2 * (seed % 7 + 1):
        return Finding("The result is twice the input.", f"{seed % 7 + 1} gave something <else>", Symptom.VALUE, 2)
    return None


DOUBLE = Exercise("training.99", "Twice", ("think", "add it to itself"), examine_double)


@pytest.fixture(autouse=True)
def one_exercise(monkeypatch):
    monkeypatch.setattr(checks, "find_exercise", lambda name: DOUBLE)
    monkeypatch.setattr(checks, "_revealed", {})


def not_started(x):
    raise NotImplementedError("training.99: twice")


def broken(x):
    return x / 0


def leaves(x):
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (lambda x: 2 * x, State.PASS),
        (lambda x: 3 * x, State.NOT_YET),
        (not_started, State.NOT_STARTED),
        (broken, State.ERROR),
        (leaves, State.ERROR),
        (lambda: 1, State.ERROR),
        (None, State.ERROR),
    ],
)
def test_each_state_has_a_word_and_a_symbol(answer, state):
    verdict = check("training.99", answer, seed=3)
    assert verdict.state is state and bool(verdict) == (state is State.PASS)
    text, (data, metadata) = str(verdict), verdict._repr_mimebundle_()
    assert text.startswith(f"{checks.LOOKS[state][0]} {state} · training.99 · Twice")
    assert data["text/plain"] == text and str(state) in data["text/html"]
    assert metadata == {CHECK_KEY: {"id": "training.99", "state": str(state)}}


def test_a_wrong_answer_is_told_what_failed_but_not_the_answer():
    text = str(check("training.99", lambda x: 3 * x, seed=3))
    for words in ("twice the input", "4 gave", "wrong value", 'hint("training.99", 2) of 2', "seed=3"):
        assert words in text
    assert "8" not in re.sub(r"seed=\d+|helpers [\d.]+", "", text)
    assert "&lt;else&gt;" in check("training.99", lambda x: 3 * x, seed=3)._repr_html_()


def test_passing_prints_nothing_that_changes_from_run_to_run():
    assert str(check("training.99", lambda x: 2 * x)) == str(check("training.99", lambda x: 2 * x))


def test_an_error_shows_the_learners_own_lines_only():
    details = dict(check("training.99", broken, seed=1).details)
    assert details["Raised"] == "ZeroDivisionError: division by zero"
    assert "return x / 0" in details["Where"] and "checks.py" not in details["Where"]


def test_an_interrupt_goes_through():
    def interrupted(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check("training.99", interrupted)


def test_what_cannot_run_here_is_skipped_with_the_reason():
    exercise = Exercise("edge.99", "Needs a GPU", ("h",), examine_double, lambda: "no device")
    verdict = judge(exercise, None, 0)
    assert verdict.state is State.SKIPPED and "no device" in str(verdict)


def test_hints_come_one_after_another_and_the_last_one_stays(capsys):
    for _ in range(3):
        hint("training.99")
    hint("training.99", 1)
    assert capsys.readouterr().out.splitlines() == [
        "Hint 1 of 2: think",
        "Hint 2 of 2: add it to itself",
        "Hint 2 of 2: add it to itself",
        "Hint 1 of 2: think",
    ]
    with pytest.raises(CheckError, match="no hint 5"):
        hint("training.99", 5)


@pytest.mark.parametrize("name", ["training.77", "trainin.1", "", "edge"])
def test_an_unknown_exercise_is_named_with_those_that_exist(name):
    with pytest.raises(CheckError, match="there is no exercise") as caught:
        find_exercise(name)
    assert "1" in caught.value.mend


def test_every_exercise_has_hints_and_its_findings_point_at_one():
    for exercise in all_exercises():
        assert len(exercise.hints) >= 3 and re.fullmatch(r"[a-z]+\.\d+", exercise.id)
