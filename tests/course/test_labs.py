import nbformat
import pytest

from helpers import cli
from helpers.course.labs import LabError, differences, exercises_of, leaks, make_lab

ANSWER = """def f(x):
    ### BEGIN SOLUTION
    # EXERCISE training.1: twice the input
    result_of_doubling = x + x
    return result_of_doubling
    ### END SOLUTION
"""


def code(source, *tags, name="cell"):
    cell = nbformat.v4.new_code_cell(source, id=name, metadata={"tags": list(tags)} if tags else {})
    cell.outputs = [nbformat.v4.new_output("stream", text="secret output")]
    cell.execution_count = 1
    return cell


def book(*cells):
    return nbformat.v4.new_notebook(cells=list(cells), metadata={"course": {"title": "t"}})


def test_an_answer_becomes_a_placeholder_with_the_same_indent():
    lab = make_lab(book(code(ANSWER)))
    assert lab.cells[0].source == (
        "def f(x):\n    # Exercise training.1: twice the input\n"
        '    raise NotImplementedError("training.1: twice the input")'
    )
    compile(lab.cells[0].source, "lab", "exec")
    assert lab.cells[0].outputs == [] and lab.cells[0].execution_count is None


def test_the_solution_is_left_as_it_is():
    solution = book(code(ANSWER))
    before = nbformat.writes(solution)
    make_lab(solution)
    assert nbformat.writes(solution) == before


def test_tags_decide_what_stays():
    cells = [
        code(ANSWER, name="a"),
        code("shown_only_to = 'teachers'", "instructor", name="b"),
        code("the_result = 3", "solution", name="c"),
        code("# print('only in the lab')\n# x = 1", "lab-only", name="d"),
        code("target: str = 'cpu'", "parameters", name="e"),
        code("1 + 1", "nbval-check-output", name="f"),
    ]
    lab = make_lab(book(*cells))
    assert [cell.id for cell in lab.cells] == ["a", "d", "e", "f"]
    assert lab.cells[1].source == "print('only in the lab')\nx = 1"
    assert [dict(cell.metadata) for cell in lab.cells] == [{}, {}, {"tags": ["parameters"]}, {}]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (ANSWER.replace("    ### END SOLUTION\n", ""), "not closed"),
        (ANSWER.replace("    ### BEGIN SOLUTION\n", ""), "never began"),
        (ANSWER.replace("    return result_of_doubling\n", "    ### BEGIN SOLUTION\n"), "begins inside another"),
        (ANSWER.replace("# EXERCISE training.1: twice the input", "# twice"), "does not name its exercise"),
        ("    ### BEGIN SOLUTION\n    ### END SOLUTION", "does not name its exercise"),
        ("x = 1", "marks no exercise"),
    ],
)
def test_markers_that_make_no_lab_are_named(source, message):
    with pytest.raises(LabError, match=message):
        make_lab(book(code(source, name="the-cell")), "solutions/x.ipynb")


def test_a_leak_is_found_and_a_shared_line_is_none():
    solution = book(code(ANSWER), code("result_of_doubling = x + x", name="other"))
    assert leaks(solution, make_lab(solution)) == []
    solution = book(code(ANSWER))
    lab = make_lab(solution)
    lab.cells.append(code("result_of_doubling = x + x"))
    assert leaks(solution, lab) == ["result_of_doubling = x + x"]
    assert "### BEGIN SOLUTION" in leaks(solution, solution)


def test_exercises_are_listed_in_order():
    second = ANSWER.replace("training.1", "edge.7")
    assert exercises_of(book(code(ANSWER), code(second, name="b"))) == ("training.1", "edge.7")


def test_generating_writes_mends_and_removes(tmp_path, capsys):
    solution = tmp_path / "solutions/training/01_x.ipynb"
    solution.parent.mkdir(parents=True)
    nbformat.write(book(code(ANSWER)), solution)
    orphan = tmp_path / "labs/old.ipynb"
    orphan.parent.mkdir()
    nbformat.write(book(code("x = 1")), orphan)
    lab = tmp_path / "labs/training/01_x.ipynb"
    assert differences(tmp_path) == {lab: "missing", orphan: "orphan"}
    assert cli.main(["labs", "--check", "--root", str(tmp_path)]) == 1
    assert not lab.exists() and orphan.exists()
    assert cli.main(["labs", "--root", str(tmp_path)]) == 0
    assert lab.exists() and not orphan.exists() and differences(tmp_path) == {}
    lab.write_text(lab.read_text().replace("Exercise", "Task"))
    assert differences(tmp_path) == {lab: "differs"}
    assert "differs  labs/training/01_x.ipynb" in (
        cli.main(["labs", "--check", "--root", str(tmp_path)]) and capsys.readouterr().out
    )
