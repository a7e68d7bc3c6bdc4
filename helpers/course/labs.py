"""Labs are generated from solutions: the answers go, everything else stays."""

import argparse
import re
from pathlib import Path

import nbformat

from helpers.course.files import write_atomically
from helpers.errors import CourseError

ROOT = Path(__file__).parents[2]
BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
EXERCISE = re.compile(r"# EXERCISE (?P<id>[a-z]+\.\d+): (?P<what>.+)")


class LabError(CourseError):
    """A solution notebook whose markers do not make a lab."""


def exercises_of(notebook: nbformat.NotebookNode) -> tuple[str, ...]:
    """The ids of the exercises that a solution notebook marks, in order."""
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return tuple(match["id"] for source in code for match in EXERCISE.finditer(source))


def make_lab(solution: nbformat.NotebookNode, where: str = "") -> nbformat.NotebookNode:
    """The lab of a solution notebook, which is left as it is.

    Solution blocks become a `NotImplementedError` with the exercise's id; cells tagged `solution`
    or `instructor` are removed; the comment signs of a cell tagged `lab-only` are taken away, so
    it runs only in the lab; outputs and counts go; cell ids stay.
    Raises `LabError` for nested, unclosed or unnamed blocks, and for a notebook without any.
    """
    lab = nbformat.from_dict(solution)
    lab.cells = [cell for cell in lab.cells if not {"solution", "instructor"} & set(_tags(cell))]
    for cell in lab.cells:
        if cell.cell_type != "code":
            continue
        cell.source = _without_answers(cell.source, f"{where}: {cell.id}")
        if "lab-only" in _tags(cell):
            cell.source = "\n".join(line.removeprefix("# ") for line in cell.source.splitlines())
        cell.outputs, cell.execution_count = [], None
        cell.metadata = {"tags": ["parameters"]} if "parameters" in _tags(cell) else {}
    if not exercises_of(solution):
        raise LabError("the solution marks no exercise", where=where, mend=f"use {BEGIN} … {END}")
    return lab


def _tags(cell: nbformat.NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def _without_answers(source: str, where: str) -> str:
    kept: list[str] = []
    block: list[str] | None = None
    for line in source.splitlines():
        marker = line.strip()
        if marker == BEGIN:
            if block is not None:
                raise LabError("a solution block begins inside another", where=where, mend=f"close it with {END}")
            block = []
        elif marker == END:
            if block is None:
                raise LabError("a solution block ends that never began", where=where, mend=f"open it with {BEGIN}")
            kept += _placeholder(block, line[: len(line) - len(line.lstrip())], where)
            block = None
        elif block is None:
            kept.append(line)
        else:
            block.append(line)
    if block is not None:
        raise LabError("a solution block is not closed", where=where, mend=f"close it with {END}")
    return "\n".join(kept)


def _placeholder(block: list[str], indent: str, where: str) -> list[str]:
    match = EXERCISE.fullmatch(block[0].strip()) if block else None
    if match is None:
        raise LabError(
            "the first line of a solution block does not name its exercise",
            where=where,
            mend="write # EXERCISE track.number: what to build",
        )
    name = f"{match['id']}: {match['what']}"
    return [f"{indent}# Exercise {name}", f'{indent}raise NotImplementedError("{name}")']


def leaks(solution: nbformat.NotebookNode, lab: nbformat.NotebookNode) -> list[str]:
    """Lines of an answer that stand in the lab all the same, and marker words left there.

    A line counts when it has 12 significant characters, and does not stand outside the answers
    of the solution too.
    """
    inside, outside = [], set()
    for cell in solution.cells:
        within = "solution" in _tags(cell) or "instructor" in _tags(cell)
        for line in cell.source.splitlines():
            if line.strip() == BEGIN:
                within = True
            elif line.strip() == END:
                within = False
            elif within:
                inside.append(line.strip())
            else:
                outside.add(line.strip())
    text = "\n".join(cell.source for cell in lab.cells)
    answers = [line for line in inside if len(re.sub(r"\W", "", line)) >= 12 and line not in outside]
    return [line for line in (*answers, BEGIN, END, "# EXERCISE ") if line in text]


def generate(root: Path) -> dict[Path, str]:
    """The text of every lab under `root`, by its path, as it should stand in labs/."""
    made = {}
    for path in sorted((root / "solutions").rglob("*.ipynb")):
        if ".ipynb_checkpoints" in path.parts:
            continue
        relative = path.relative_to(root / "solutions")
        solution = nbformat.read(path, as_version=4)
        lab = make_lab(solution, f"solutions/{relative}")
        made[root / "labs" / relative] = nbformat.writes(lab).rstrip("\n") + "\n"
    return made


def differences(root: Path) -> dict[Path, str]:
    """What generating would change under labs/: path to `missing`, `differs` or `orphan`."""
    made = generate(root)
    there = {p for p in (root / "labs").rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts}
    changed = {path: "missing" for path in made.keys() - there}
    changed |= {p: "differs" for p in made.keys() & there if p.read_text(encoding="utf-8") != made[p]}
    return changed | {path: "orphan" for path in there - made.keys()}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `helpers labs`."""
    parser.add_argument("--check", action="store_true", help="say what differs, and write nothing")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)


def execute(args: argparse.Namespace) -> int:
    """Generate, or with `--check` compare; 1 when labs/ was not what it should be under `--check`."""
    changed = differences(args.root)
    made = generate(args.root)
    for path, why in sorted(changed.items()):
        print(f"{why:<8} {path.relative_to(args.root)}")
        if not args.check:
            path.unlink() if why == "orphan" else write_atomically(path, made[path])
    print(f"{len(made)} labs, {len(changed)} {'differ' if args.check else 'written or removed'}")
    return int(args.check and bool(changed))
