from pathlib import Path

import nbformat
import pytest

from helpers import cli
from helpers.course.grade import grade
from helpers.course.notebooks import NotebookError

LAB = Path(__file__).parents[2] / "labs/profiling/02_work_and_roof.ipynb"
RIGHT = """def answer(m, k, n, element_bytes, peak, bandwidth):
    return min(peak, bandwidth * 2 * m * k * n / (element_bytes * (m * k + k * n + m * n)))"""


def lab(folder, *sources):
    path = folder / "mine.ipynb"
    cells = [nbformat.v4.new_code_cell(source) for source in ("from helpers.course import check", *sources)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def test_errors_do_not_hide_later_answers_and_the_file_is_not_written(tmp_path, capsys):
    path = lab(tmp_path, "1 / 0", RIGHT, "check('profiling.1', answer)", "check('training.1', undefined)")
    before = path.read_bytes()
    states = {line.exercise: (line.state, line.remark) for line in grade(path)}
    assert states == {"profiling.1": ("PASS", ""), "training.1": ("NOT CHECKED", "the check was not reached")}
    assert path.read_bytes() == before
    assert cli.main(["grade", str(path)]) == 1
    assert "NOT CHECKED" in capsys.readouterr().out


def test_a_dead_kernel_is_told_and_never_a_pass(tmp_path):
    path = lab(
        tmp_path, RIGHT, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "check('profiling.1', answer)"
    )
    [line] = grade(path)
    assert (line.state, line.remark) == ("NOT CHECKED", "the kernel died")


def test_a_file_that_is_no_notebook_is_named(tmp_path):
    (tmp_path / "x.ipynb").write_text("{}")
    with pytest.raises(NotebookError):
        grade(tmp_path / "x.ipynb")
