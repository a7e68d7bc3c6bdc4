import json

import pytest

from helpers.course import learner
from helpers.course.checks import CheckError, all_exercises, find_exercise
from helpers.course.learner import NOT_A_LEARNER, read, record

TRIED = ("NOT YET", 1, "off by one")


def test_progress_is_appended_and_read_back(tmp_path):
    file = tmp_path / ".progress/p.jsonl"
    record("training.1", "NOT YET", "wrong shape", file)
    record("training.1", "PASS", "", file)
    record("edge.1", "ERROR", "", file)
    entries, broken = read(file)
    assert [(e.exercise, e.state, e.symptom) for e in entries][:2] == [
        ("training.1", "NOT YET", "wrong shape"),
        ("training.1", "PASS", ""),
    ]
    assert broken == 0
    rows = {row[0]: row for row in learner.progress(file=file).rows}
    assert rows["training.1"][2:4] == ("✓ PASS", 2) and rows["edge.1"][2] == "ERROR"


def test_unreadable_lines_are_counted_and_the_rest_survives(tmp_path):
    file = tmp_path / "p.jsonl"
    record("training.1", "PASS", "", file)
    file.write_bytes(
        file.read_bytes() + b'{"time": "cut\n\xff\xfe\n[1]\n' + json.dumps({"other": 1}).encode() + b"\n"
    )
    record("edge.1", "PASS", "", file)
    entries, broken = read(file)
    assert [entry.exercise for entry in entries] == ["training.1", "edge.1"] and broken == 4
    assert "4 unreadable lines" in str(learner.progress(file=file))


def test_what_was_not_tried_is_listed_too(tmp_path):
    file = tmp_path / "p.jsonl"
    assert {row[2:] for row in learner.progress(file=file).rows} == {("not tried", 0, "–")}
    record("training.2", "NOT YET", "off by one", file)
    rows = learner.progress(file=file).rows
    assert [row[:2] for row in rows] == [(one.id, one.title) for one in all_exercises()]
    assert [row for row in rows if row[3]] == [("training.2", find_exercise("training.2").title, *TRIED)]


def test_a_lab_lists_its_own_exercises(tmp_path):
    file = tmp_path / "p.jsonl"
    record("training.2", "NOT YET", "off by one", file)
    record("edge.1", "PASS", "", file)
    rows = learner.progress("training.3", "training.2", file=file).rows
    assert [(row[0], *row[2:]) for row in rows] == [("training.3", "not tried", 0, "–"), ("training.2", *TRIED)]
    edge = [one.id for one in all_exercises(("edge",))]
    assert [row[0] for row in learner.progress("edge.1", "edge", file=file).rows] == edge
    with pytest.raises(CheckError, match=r"no exercise 'training\.99'"):
        learner.progress("training.99", file=file)


@pytest.mark.parametrize("name", NOT_A_LEARNER)
def test_machines_learn_nothing(tmp_path, monkeypatch, name):
    for other in NOT_A_LEARNER:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setattr(learner, "FILE", tmp_path / "p.jsonl")
    monkeypatch.setenv(name, "1")
    record("training.1", "PASS", "")
    assert not (tmp_path / "p.jsonl").exists()
    monkeypatch.delenv(name)
    record("training.1", "PASS", "")
    assert (tmp_path / "p.jsonl").exists()


def test_a_folder_that_cannot_be_written_costs_only_the_entry(tmp_path):
    (tmp_path / "file").write_text("")
    record("training.1", "PASS", "", tmp_path / "file" / "p.jsonl")


def test_what_a_notebook_imports_is_what_it_calls():
    """A submodule of the same name would hide the function once it is imported."""
    import helpers.course
    from helpers.course import checks, labs, lesson, notebooks, run  # noqa: F401

    assert all(callable(getattr(helpers.course, name)) for name in helpers.course.EXPORTS)
