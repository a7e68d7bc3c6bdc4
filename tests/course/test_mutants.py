"""Each check catches the typical wrong answers, each with its own symptom, and takes the right one."""

import runpy
from collections import defaultdict
from pathlib import Path

import nbformat
import pytest

from helpers.course.checks import State, all_exercises, find_exercise, judge
from helpers.course.labs import BEGIN, EXERCISE

ROOT = Path(__file__).parents[2]
MUTANTS = sorted((ROOT / "tests/mutants").glob("*/*.py"))
IDS = [exercise.id for exercise in all_exercises()]


def symptom_of(path):
    first = runpy.run_path(str(path))["__doc__"].splitlines()[0]
    assert first.startswith("symptom: "), path
    return first.removeprefix("symptom: ")


@pytest.mark.parametrize("path", MUTANTS, ids=[f"{p.parent.name}/{p.stem}" for p in MUTANTS])
def test_a_wrong_answer_is_caught_with_its_symptom(path):
    exercise = find_exercise(path.parent.name)
    answer = runpy.run_path(str(path))["answer"]
    for seed in (0, 1):
        verdict = judge(exercise, answer, seed)
        if verdict.state is State.SKIPPED:
            pytest.skip(str(verdict))
        details = dict(verdict.details)
        assert (verdict.state, details.get("Kind")) == (State.NOT_YET, symptom_of(path)), str(verdict)
        assert 1 <= int(details["Next"].partition(", ")[2].partition(")")[0]) <= len(exercise.hints)


def test_every_exercise_has_mutants_of_several_symptoms():
    symptoms = defaultdict(list)
    for path in MUTANTS:
        symptoms[path.parent.name].append(symptom_of(path))
    assert set(symptoms) == set(IDS)
    for name, found in symptoms.items():
        assert len(found) >= 5 and len(set(found)) >= 4, name


def solution_of(identifier):
    """The cell of a solution notebook that answers an exercise, and the cells before it that import."""
    for path in sorted((ROOT / "solutions").rglob("*.ipynb")):
        cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        for source in cells:
            match = EXERCISE.search(source)
            if match and match["id"] == identifier and BEGIN in source:
                imports = "\n".join(cell for cell in cells if cell.lstrip().startswith(("import ", "from ")))
                return imports, source
    raise AssertionError(f"no solution answers {identifier}")


@pytest.mark.parametrize("identifier", IDS)
def test_the_solution_passes_for_many_seeds(identifier):
    imports, source = solution_of(identifier)
    names: dict = {}
    exec(imports, names)
    before = set(names)
    exec(source, names)
    [answer] = [names[name] for name in names.keys() - before if callable(names[name])]
    for seed in range(8):
        verdict = judge(find_exercise(identifier), answer, seed)
        if verdict.state is State.SKIPPED:
            pytest.skip(str(verdict))
        assert verdict.state is State.PASS, str(verdict)
