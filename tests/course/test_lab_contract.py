"""The lab contract: an untouched lab asks for its exercises and nothing else; no answer leaks into it."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from helpers.course import labs, notebooks
from helpers.course.checks import CHECK_KEY

ROOT = Path(__file__).parents[2]
SOLUTIONS = sorted((ROOT / "solutions").rglob("*.ipynb"))
NAMES = [path.stem for path in SOLUTIONS]


def lab_of(solution):
    return ROOT / "labs" / solution.relative_to(ROOT / "solutions")


def test_generating_again_changes_nothing():
    assert labs.differences(ROOT) == {}, "run helpers labs"


@pytest.mark.parametrize("path", notebooks.all_notebooks(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_notebook_keeps_the_rules(path):
    assert [str(problem) for problem in notebooks.problems(path)] == []


@pytest.mark.parametrize("solution", SOLUTIONS, ids=NAMES)
def test_no_answer_leaks(solution):
    lab = nbformat.read(lab_of(solution), as_version=4)
    assert labs.leaks(nbformat.read(solution, as_version=4), lab) == []


@pytest.mark.parametrize("solution", SOLUTIONS, ids=NAMES)
def test_links_lead_somewhere(solution):
    import re

    for path in (solution, lab_of(solution)):
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "markdown":
                for link in re.findall(r"\]\(([^)#:]+)\)", cell.source):
                    assert (path.parent / link).exists(), f"{path.name}: {link}"


@pytest.mark.parametrize("solution", SOLUTIONS, ids=NAMES)
def test_an_untouched_lab_asks_for_its_exercises_and_raises_nothing_else(solution):
    wanted = labs.exercises_of(nbformat.read(solution, as_version=4))
    lab = nbformat.read(lab_of(solution), as_version=4)
    folder = str(lab_of(solution).parent)
    NotebookClient(
        lab, timeout=300, kernel_name="python3", allow_errors=True, resources={"metadata": {"path": folder}}
    ).execute()
    outputs = [output for cell in lab.cells if cell.cell_type == "code" for output in cell.outputs]
    errors = {(o.ename, o.evalue.partition(":")[0]) for o in outputs if o.output_type == "error"}
    assert errors <= {("NotImplementedError", name) for name in wanted}
    states = {
        o.metadata[CHECK_KEY]["id"]: o.metadata[CHECK_KEY]["state"]
        for o in outputs
        if CHECK_KEY in o.get("metadata", {})
    }
    assert set(states) == set(wanted)
    assert set(states.values()) <= {"NOT STARTED", "SKIPPED"}
