"""`helpers check`: the notebook rules, what mends them, and the storing of outputs."""

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from helpers.course import rules
from helpers.course.files import NotebookError, read_notebook, write_atomically
from helpers.course.lesson import TOKEN_VARIABLE

ROOT = Path(__file__).parents[2]
FOLDERS = ("notebooks", "solutions", "labs")
KEEP = ("nbval-check-output", "keep-figure")
CELL_KEYS, OUTPUT_KEYS = {"tags"}, {"alt"}


@dataclass(frozen=True)
class Problem:
    """One broken rule: the notebook, the cell's id or '', what is wrong, and the mend."""

    path: str
    cell: str
    what: str
    mend: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.path, self.cell, self.what, self.mend) if part)


def canonical(notebook: NotebookNode) -> str:
    """The one text of a notebook: as nbformat writes it, with one newline at the end."""
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def problems(path: Path, root: Path = ROOT) -> list[Problem]:
    """Every rule of CONTRIBUTING.md that the notebook breaks."""
    relative = path.relative_to(root) if path.is_relative_to(root) else path
    notebook = read_notebook(path)
    kind = relative.parts[0] if relative.parts[0] in FOLDERS else "notebooks"
    found = [Problem(str(relative), *broken) for rule in rules.RULES for broken in rule(notebook, kind)]
    if path.read_text(encoding="utf-8") != canonical(notebook):
        found.append(Problem(str(relative), "", "its bytes are not canonical", "helpers check --fix"))
    return found


def mend(notebook: NotebookNode) -> NotebookNode:
    """Mend in place what can be mended without judgement, and return the notebook.

    Outputs of cells that keep none go, with their counts; stray metadata goes; the kernel becomes
    `python3`.
    """
    notebook.metadata = NotebookNode(
        {"course": notebook.metadata.get("course", {})} if "course" in notebook.metadata else {}
    )
    notebook.metadata.kernelspec = {"display_name": "Python 3", "language": "python", "name": "python3"}
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        cell.metadata = NotebookNode({"tags": tags} if tags else {})
        if cell.cell_type != "code":
            continue
        if not set(KEEP) & set(tags):
            cell.outputs = []
        if not cell.outputs:
            cell.execution_count = None
        for output in cell.outputs:
            if "metadata" in output:
                output.metadata = {key: output.metadata[key] for key in OUTPUT_KEYS & set(output.metadata)}
    return notebook


def accept(path: Path) -> None:
    """Run a notebook from a fresh kernel in its own folder and store the outputs that it keeps.

    Raises `NotebookError` naming the cell when one fails; nothing is written then.
    """
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    notebook = read_notebook(path)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client = NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}
    )
    try:
        client.execute(env=os.environ | {TOKEN_VARIABLE: "accept"})
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        ran = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.execution_count]
        where = f"{path}: {ran[-1].id if ran else 'before the first cell'}"
        raise NotebookError(f"the notebook failed: {error}", where=where, mend="mend the cell") from None
    write_atomically(path, canonical(mend(notebook)))


def all_notebooks(root: Path = ROOT) -> list[Path]:
    """Every notebook of the course, sorted."""
    paths = (path for folder in FOLDERS for path in (root / folder).rglob("*.ipynb"))
    return sorted(path for path in paths if ".ipynb_checkpoints" not in path.parts)


def _files(path: Path) -> list[Path]:
    """A notebook, or all notebooks of a folder."""
    return sorted(path.rglob("*.ipynb")) if path.is_dir() else [path]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `helpers check`."""
    parser.add_argument("paths", nargs="*", type=Path, help="notebooks or folders; all of the course without any")
    parser.add_argument("--fix", action="store_true", help="mend what can be mended")
    parser.add_argument("--accept", action="store_true", help="run the notebooks and store what they keep")


def execute(args: argparse.Namespace) -> int:
    """Print the problems, a line each; 1 when there are any."""
    paths = [file for path in args.paths for file in _files(path.resolve())] or all_notebooks()
    for path in paths:
        if args.accept:
            accept(path)
        elif args.fix:
            write_atomically(path, canonical(mend(read_notebook(path))))
    found = [problem for path in paths for problem in problems(path)]
    print(*found, f"{len(paths)} notebooks, {len(found)} problems", sep="\n")
    return int(bool(found))
