"""`helpers grade`: run lab notebooks headless and say how each exercise stands."""

import argparse
import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from helpers.course.checks import CHECK_KEY
from helpers.course.files import NotebookError, read_notebook
from helpers.course.lesson import TOKEN_VARIABLE
from helpers.measure.show import Table

CELL_TIMEOUT_S = 120
EXERCISE = re.compile(r"check\(\s*[\"'](?P<id>[a-z]+\.\d+)[\"']")
GOOD = ("PASS", "SKIPPED")


@dataclass(frozen=True)
class Grade:
    """How one exercise of one notebook stands; state is a check's, or `NOT CHECKED` with a remark."""

    notebook: str
    exercise: str
    state: str
    remark: str = ""


def grade(path: Path) -> tuple[Grade, ...]:
    """Run the notebook from a fresh kernel, past every error, and read its verdicts.

    The file is not written. An exercise whose check did not run, because a cell timed out or the
    kernel died, is `NOT CHECKED`. Raises `NotebookError` for a file that is no notebook.
    """
    if path.suffix != ".ipynb" or not path.is_file():
        raise NotebookError(f"there is no notebook {str(path)!r}", mend="name .ipynb files, as labs/training/*.ipynb")
    notebook = read_notebook(path)
    wanted = [match["id"] for cell in notebook.cells for match in EXERCISE.finditer(cell.source)]
    remark = _run(notebook, path.parent)
    verdicts = _verdicts(notebook)
    return tuple(
        Grade(str(path), name, verdicts.get(name, "NOT CHECKED"), "" if name in verdicts else remark)
        for name in dict.fromkeys(wanted)
    )


def _run(notebook: NotebookNode, folder: Path) -> str:
    """Execute in place; returns why it stopped early, or ''."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []  # what is stored is not what this run said
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        allow_errors=True,
        resources={"metadata": {"path": str(folder.resolve())}},
    )
    try:
        client.execute(env=os.environ | {TOKEN_VARIABLE: "grade"})
    except CellTimeoutError:
        return f"a cell ran longer than {CELL_TIMEOUT_S} s"
    except DeadKernelError:
        return "the kernel died"
    return "the check was not reached"


def _verdicts(notebook: NotebookNode) -> dict[str, str]:
    found = {}
    for cell in notebook.cells:
        for output in cell.get("outputs") or ():
            with contextlib.suppress(KeyError):
                verdict = output["metadata"][CHECK_KEY]
                found[verdict["id"]] = verdict["state"]
    return found


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `helpers grade`."""
    parser.add_argument("notebooks", nargs="+", type=Path, help="lab notebooks, as a learner left them")


def execute(args: argparse.Namespace) -> int:
    """Print a table; 0 when every exercise passed or was skipped."""
    grades = [line for path in args.notebooks for line in grade(path)]
    if not grades:
        print("no exercise in " + ", ".join(map(str, args.notebooks)))
        return 1
    rows = tuple((line.notebook, line.exercise, line.state, line.remark or "–") for line in grades)
    print(Table(("notebook", "exercise", "state", "remark"), rows))
    return int(any(line.state not in GOOD for line in grades))
