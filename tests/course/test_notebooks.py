import nbformat
import pytest

from helpers import cli
from helpers.course import rules
from helpers.course.notebooks import NotebookError, canonical, mend, problems, read_notebook

COURSE = {"title": "t", "minutes": 5, "live": "", "otherwise": "", "how": ""}
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
CHECKED = "nbval-check-output"


def cell(name, source, *tags, out=None, count=None):
    made = nbformat.v4.new_code_cell(source, id=name, metadata={"tags": list(tags)} if tags else {})
    if out is not None:
        made.outputs, made.execution_count = [nbformat.v4.new_output("stream", text=out)], count
    return made


def good_cells():
    return [
        nbformat.v4.new_markdown_cell("# Title", id="title"),
        cell("parameters", 'target: str = "cpu"  # the machine', "parameters"),
        cell("one", "print(1)", CHECKED, out="1\n", count=2),
        cell("two", "print(2)", CHECKED, out="2\n", count=3),
        cell("three", "print(3)", CHECKED, out="3\n", count=4),
        cell("end", "from helpers.course import finish\nfinish()"),
    ]


def book(cells, **metadata):
    return nbformat.v4.new_notebook(cells=cells, metadata={"course": COURSE, "kernelspec": KERNEL} | metadata)


def write(folder, notebook, kind="notebooks"):
    path = folder / kind / "x.ipynb"
    path.parent.mkdir(exist_ok=True)
    path.write_text(canonical(notebook))
    return path


def found(folder, notebook, kind="notebooks"):
    return [str(problem) for problem in problems(write(folder, notebook, kind), folder)]


def test_a_good_notebook_has_no_problem(tmp_path):
    assert found(tmp_path, book(good_cells())) == []


def changed(index, **fields):
    cells = good_cells()
    for name, value in fields.items():
        setattr(cells[index], name, value)
    return cells


BAD = [
    (changed(0, source="No title"), "first cell is not a markdown title"),
    (changed(0, source="# Title\n\n### Too deep"), "level 3 follows level 1"),
    (changed(2, id="3fa85f64"), "id is not made of words"),
    (changed(1, metadata={}), "not the one cell tagged parameters"),
    (changed(1, source='target: str | None = "cpu"'), "is not a flat parameter"),
    (changed(1, source='target: str = "cpu"  # as a=b'), "is not a flat parameter"),
    (changed(1, source='target: str = "cpu"\nsizes: dict = dict(a=1)'), "is not a flat parameter"),
    (changed(1, source='target: str = "cpu"\nhalf: int = 4 // 2'), "is not a flat parameter"),
    (changed(1, source='seed: int = 0\ntarget: str = "cpu"'), "first parameter is not target"),
    (changed(1, source="\n".join(['target: str = "cpu"', *(f"p{i}: int = {i}" for i in range(6))])), "7 parameters"),
    (changed(5, source="x = 1"), "does not end in finish()"),
    (changed(2, source="\n".join("print(1)" for _ in range(26))), "26 lines of code"),
    (changed(2, metadata={"tags": [CHECKED, "raises-exception"]}), "tagged raises-exception"),
    (changed(2, source="!ls"), "shell or magic line"),
    (changed(2, source="%time x"), "shell or magic line"),
    (changed(2, source="# pip install torch"), "installs packages"),
    (changed(2, source="open('/home/me/x')"), "absolute path"),
    (changed(2, execution_count=7), "not run in order"),
    (changed(2, execution_count=None), "not run in order"),
    (changed(2, metadata={}), "nothing compares"),
    (changed(2, outputs=[], execution_count=None), "holds no output"),
    (changed(2, outputs=[], execution_count=2), "a count without an output"),
    (changed(2, outputs=[nbformat.v4.new_output("error", ename="E", evalue="v", traceback=[])]), "holds an error"),
    (changed(2, metadata={"tags": ["keep-figure"]}), "without alternative text"),
    (changed(2, metadata={"tags": [CHECKED], "papermill": {"duration": 1}}), "stray metadata: papermill"),
    (changed(4, metadata={}, outputs=[], execution_count=None), "nbval compares 2 cells"),
    (changed(2, outputs=[nbformat.v4.new_output("stream", text="x" * 400_000)]), "bytes"),
]


@pytest.mark.parametrize(("cells", "message"), BAD, ids=[message for _, message in BAD])
def test_a_broken_rule_is_told(tmp_path, cells, message):
    assert any(message in problem for problem in found(tmp_path, book(cells))), found(tmp_path, book(cells))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"kernelspec": KERNEL | {"name": "conda-env"}}, "kernel is 'conda-env'"),
        ({"widgets": {}}, "stray metadata: widgets"),
        ({"course": {}}, "metadata course.title is None"),
        ({"course": COURSE | {"minutes": "5"}}, "course.minutes is '5'"),
        ({"course": COURSE | {"live": "cuda"}}, "course.live is 'cuda'"),
        ({"course": COURSE | {"live": "cuda>=1"}}, "does not say what is shown instead"),
    ],
)
def test_wrong_metadata_is_told(tmp_path, metadata, message):
    assert any(message in problem for problem in found(tmp_path, book(good_cells(), **metadata)))


GUESSES = {
    "never shown": (("my_sum = 0", "total = 1"), ["my_sum"]),
    "shown": (("my_sum = 0", "print(my_sum)"), []),
    "shown in its own cell only": (("my_sum = 0\nprint(my_sum)", "total = 1"), ["my_sum"]),
    "used for another guess only": (("my_sum = 0\nmy_bytes = 4 * my_sum", "print(my_bytes)"), ["my_sum"]),
    "shown before it is asked for": (("print(my_sum)", "my_sum = 0"), ["my_sum"]),
    "only assigned again": (("my_sum = 0", "my_sum = 1"), ["my_sum", "my_sum"]),
    "only added to": (("my_sum = 0", "my_sum += 1"), ["my_sum", "my_sum"]),
    "assigned again, and then shown": (("my_sum = 0", "my_sum = 1", "print(my_sum)"), ["my_sum"]),
    "shown, and asked for again": (("my_sum = 0", "print(my_sum)", "my_sum = 1", "print(my_sum)"), []),
    "shown where it is asked for again": (("my_sum = 0", "print(my_sum)\nmy_sum = 1", "print(my_sum)"), []),
    "one of two": (("my_sum, my_bytes = 0, 0", "print(my_bytes)"), ["my_sum"]),
    "with a type": (("my_sum: float = 0", "total = 1"), ["my_sum"]),
    "of a table": (("my_sums = {4: 0}", "show_table((), [(one, my_sums[one]) for one in my_sums])"), []),
    "in an f-string": (("my_sum = 0", "print(f'{1:.2f}; you said {my_sum}')"), []),
    "in the text of a string": (("my_sum = 0", "print('you said my_sum')"), ["my_sum"]),
    "in a comment": (("my_sum = 0", "total = 1  # beside my_sum"), ["my_sum"]),
    "in a nested function": (("my_sum = 0", "def outer():\n    def inner():\n        return my_sum"), []),
    "as an argument's name": (("my_sum = 0", "show(my_sum=1)"), ["my_sum"]),
    "a variable of a loop": (("my_sums = {4: 0}", "for one, my_sum in my_sums.items():\n    print(one)"), []),
    "a variable of a function": (("def answer():\n    my_sum = 0\n    return my_sum", "answer()"), []),
    "no guess": (("mine, sum_of_my_sum = 0, 0", "total = 1"), []),
    "a cell that is no Python": (("my_sum = 0", "!ls", "print(my_sum)"), []),
}


@pytest.mark.parametrize(("sources", "names"), GUESSES.values(), ids=GUESSES)
def test_a_guess_that_no_later_cell_shows_is_told(sources, names):
    cells = [cell(f"cell-{place}", source) for place, source in enumerate(sources)]
    cells.insert(1, nbformat.v4.new_markdown_cell("Was my_sum right? my_bytes?", id="text"))
    told = [what.split()[0] for _, what, _ in rules.guesses(book(cells), "notebooks")]
    assert told == names


def test_the_cell_that_asks_for_the_guess_is_named(tmp_path):
    cells = good_cells()
    cells.insert(2, cell("your-sum", "my_sum = 0"))
    assert any("your-sum: my_sum is asked for" in problem for problem in found(tmp_path, book(cells)))


def test_a_median_cell_that_is_too_long_is_told(tmp_path):
    cells = good_cells()
    for place in (2, 3, 4):
        cells[place].source = "\n".join("print(1)" for _ in range(7))
    assert any("median cell has 7 lines" in problem for problem in found(tmp_path, book(cells)))


def test_mending_is_idempotent_and_leaves_a_good_notebook_alone(tmp_path):
    good = book(good_cells())
    assert canonical(mend(nbformat.from_dict(good))) == canonical(good)
    cells = good_cells()
    cells[5].outputs, cells[5].execution_count = [nbformat.v4.new_output("stream", text="noise")], 5
    cells[2].metadata["papermill"] = {"duration": 1}
    messy = book(cells, widgets={"state": {}}, kernelspec=KERNEL | {"name": "other"})
    once = canonical(mend(messy))
    assert once == canonical(good) == canonical(mend(nbformat.reads(once, as_version=4)))


def test_a_file_that_is_no_notebook_is_named(tmp_path):
    for content in ("", "{}", "[1]", '{"cells": 3, "nbformat": 4, "nbformat_minor": 5, "metadata": {}}'):
        path = tmp_path / "x.ipynb"
        path.write_text(content)
        with pytest.raises(NotebookError, match="not a readable notebook"):
            read_notebook(path)


def test_accepting_stores_what_is_kept_and_passes_the_rules(tmp_path, capsys):
    cells = good_cells()
    for made in cells[2:5]:
        made.outputs, made.execution_count = [], None
    cells.insert(2, cell("loud", "print('not kept')"))
    path = write(tmp_path, book(cells))
    assert cli.main(["check", "--accept", str(path)]) == 0, capsys.readouterr().out
    stored = read_notebook(path)
    assert [c.execution_count for c in stored.cells if c.cell_type == "code"] == [None, None, 3, 4, 5, None]
    assert stored.cells[3].outputs[0].text == "1\n"


def test_accepting_a_notebook_that_fails_writes_nothing(tmp_path, capsys):
    cells = good_cells()
    cells[3].source = "1 / 0"
    path = write(tmp_path, book(cells))
    before = path.read_bytes()
    assert cli.main(["check", "--accept", str(path)]) == 2
    assert "two" in capsys.readouterr().err and path.read_bytes() == before
