"""The notebook rules, one function each: a notebook and its kind in, broken rules out.

A broken rule is `(cell id, what, mend)`. The kinds are `notebooks`, `solutions` and `labs`.
"""

import ast
import re
import statistics
from collections.abc import Iterator

from nbformat import NotebookNode

from helpers.course.catalogue import CatalogueError, entry_of

CHECKED, FIGURE = "nbval-check-output", "keep-figure"
MAX_LINES, MEDIAN_LINES, MIN_COMPARED, MAX_BYTES = 25, 6, 3, 300_000
CELL_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
RANDOM_ID = re.compile(r"[0-9a-f]{8}")
ABSOLUTE = re.compile(r"""["'](/(home|Users|root|work|tmp|mnt)/|[A-Z]:\\)""")
FIX, ACCEPT = "helpers check --fix", "helpers check --accept"

Broken = tuple[str, str, str]


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """The code cells that hold code; an empty one is never executed nor counted."""
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def tags(cell: NotebookNode) -> set[str]:
    """The tags of a cell."""
    return set(cell.metadata.get("tags", []))


def compared_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """The cells that nbval really compares: tagged, with an output and a count."""
    return [cell for cell in code_cells(notebook) if CHECKED in tags(cell) and cell.outputs and cell.execution_count]


def kernel(notebook: NotebookNode, kind: str) -> Iterator[Broken]:
    """The kernel is `python3` everywhere."""
    name = notebook.metadata.get("kernelspec", {}).get("name")
    if name != "python3":
        yield "", f"the kernel is {name!r}, not 'python3'", FIX


def first_cell(notebook: NotebookNode, kind: str) -> Iterator[Broken]:
    """The page begins with a title."""
    if not notebook.cells or not notebook.cells[0].source.startswith("# "):
        yield "", "the first cell is not a markdown title", "begin with # and the title"


def headings(notebook: NotebookNode, kind: str) -> Iterator[Broken]:
    """One title, and no level of heading is jumped over."""
    level = 0
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            continue
        text = re.sub(r"```.*?```", "", cell.source, flags=re.DOTALL)
        for marks in re.findall(r"^(#{1,6}) ", text, re.MULTILINE):
            if len(marks) > level + 1 or (len(marks) == 1 and level):
                yield cell.id, f"a heading of level {len(marks)} follows level {level}", "mend the level"
            level = len(marks)


def cell_ids(notebook: NotebookNode, kind: str) -> Iterator[Broken]:
    """Ids are words; a second cell of the same id gets a random one when nbformat reads it."""
    for cell in notebook.cells:
        if not CELL_ID.fullmatch(cell.id) or RANDOM_ID.fullmatch(cell.id):
            yield cell.id, "the id is not made of words, or stands twice", "name the cell, as shard-predict"


def parameters(notebook: NotebookNode, kind: str) -> Iterator[Broken]:
    """The parameters cell comes first and holds flat annotated literals, `target` the first."""
    code = code_cells(notebook)
    tagged = [cell for cell in code if "parameters" in tags(cell)]
    if len(tagged) != 1 or tagged != code[:1]:
        yield "", "the first code cell is not the one cell tagged parameters", "tag it"
        return
    [cell] = tagged
    lines = [line for line in cell.source.splitlines() if line.strip()]
    if len(lines) > 6:
        yield cell.id, f"{len(lines)} parameters", "keep six at most"
    if not lines[0].startswith("target: str ="):
        yield cell.id, "the first parameter is not target", 'write target: str = "cpu"'
    for line in lines:
        if not _flat(line):
            yield (
                cell.id,
                f"{line!r} is not a flat parameter",
                "write name: type = literal, one = on the line",
            )


def _flat(line: str) -> bool:
    """papermill reads parameters by a regular expression: a second `=` or a union hides one."""
    if line.count("=") != 1:
        return False
    try:
        [node] = ast.parse(line).body
        ast.literal_eval(node.value)
    except (SyntaxError, ValueError, AttributeError):
        return False
    return isinstance(node, ast.AnnAssign) and isinstance(node.annotation, ast.Name)


def last_cell(notebook: NotebookNode, kind: str) -> Iterator[Broken]:
    """The last cell writes the sentinel."""
    code = code_cells(notebook)
    if not code or code[-1].source.strip().splitlines()[-1] != "finish()":
        yield (
            code[-1].id if code else "",
            "the last code cell does not end in finish()",
            "call finish() there",
        )


def lengths(notebook: NotebookNode, kind: str) -> Iterator[Broken]:
    """Short cells: what is longer belongs in helpers, where it has a docstring and a test."""
    code = code_cells(notebook)
    for cell in code:
        if (lines := len(cell.source.splitlines())) > MAX_LINES:
            yield cell.id, f"{lines} lines of code", f"move code to helpers: {MAX_LINES} at most"
    median = statistics.median(len(cell.source.splitlines()) for cell in code) if code else 0
    if median > MEDIAN_LINES:
        yield "", f"the median cell has {median:g} lines", f"one idea a cell: {MEDIAN_LINES} at most"


def forbidden(notebook: NotebookNode, kind: str) -> Iterator[Broken]:
    """What makes a notebook pass when it should not, or run on one machine only."""
    for cell in code_cells(notebook):
        if "raises-exception" in tags(cell):
            yield cell.id, "tagged raises-exception", "use with expect(SomeError):"
        if re.search(r"^\s*[!%]", cell.source, re.MULTILINE):
            yield (
                cell.id,
                "a shell or magic line, whose failure leaves the cell green",
                "use subprocess with check=True",
            )
        if "pip install" in cell.source:
            yield cell.id, "installs packages", "put them into pyproject.toml"
        if ABSOLUTE.search(cell.source):
            yield cell.id, "an absolute path", "use a relative path or a temporary folder"


def guesses(notebook: NotebookNode, kind: str) -> Iterator[Broken]:
    """A guess that was asked for, `my_… = …`, is shown beside the result: a later cell reads it.

    Each assignment counts for itself: one that the next assignment buries unread is told as well.
    """
    read: set[str] = set()
    for cell in reversed(code_cells(notebook)):
        asked, used = _guesses(cell.source)
        for name in sorted(asked - read):
            yield cell.id, f"{name} is asked for, and no later cell reads it", "show it beside the result"
        read = (read - asked) | used


def _guesses(source: str) -> tuple[set[str], set[str]]:
    """The `my_…` names that a cell assigns outside of functions, and those that it reads anywhere.

    Both are empty for a cell that is no Python: `forbidden` tells.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return set(), set()
    statements = [
        node for node in _outside_functions(tree) if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)
    ]
    asked = {name for node in statements for name in _named(node, ast.Store)}
    return asked, _named(tree, ast.Load)


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        for child in ast.iter_child_nodes(node):
            yield from _outside_functions(child)


def _named(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, context)}
    return {name for name in names if name.startswith("my_")}


def stray_metadata(notebook: NotebookNode, kind: str) -> Iterator[Broken]:
    """No widget state, papermill traces or timings are kept."""
    extra = set(notebook.metadata) - {"course", "kernelspec"}
    if extra:
        yield "", f"stray metadata: {', '.join(sorted(extra))}", FIX
    for cell in notebook.cells:
        if set(cell.metadata) - {"tags"}:
            yield cell.id, f"stray metadata: {', '.join(sorted(set(cell.metadata) - {'tags'}))}", FIX


def outputs(notebook: NotebookNode, kind: str) -> Iterator[Broken]:
    """Outputs stand only where they are kept, with the count of a run from a fresh kernel."""
    for position, cell in enumerate(code_cells(notebook), 1):
        kept = tags(cell) & {CHECKED, FIGURE}
        if cell.outputs and (kind == "labs" or not kept):
            yield cell.id, "keeps an output that nothing compares", FIX
        elif cell.outputs and cell.execution_count != position:
            yield cell.id, f"count {cell.execution_count} on cell {position}: not run in order", ACCEPT
        elif not cell.outputs and cell.execution_count is not None:
            yield cell.id, "a count without an output", FIX
        elif kept and not cell.outputs and kind != "labs":
            yield cell.id, f"tagged {', '.join(sorted(kept))} but holds no output", ACCEPT
        if any(output.output_type == "error" for output in cell.outputs):
            yield cell.id, "holds an error", ACCEPT
        if FIGURE in kept and cell.outputs and not any('alt="' in _html(o) for o in cell.outputs):
            yield cell.id, "a figure without alternative text", "use show_fig(fig, alt)"


def _html(output: NotebookNode) -> str:
    return "".join(output.get("data", {}).get("text/html", ""))


def compares(notebook: NotebookNode, kind: str) -> Iterator[Broken]:
    """nbval must have something to compare: without it every output passes."""
    count = len(compared_cells(notebook))
    if kind != "labs" and count < MIN_COMPARED:
        yield "", f"nbval compares {count} cells, fewer than {MIN_COMPARED}", f"tag {CHECKED}, then {ACCEPT}"


def size(notebook: NotebookNode, kind: str) -> Iterator[Broken]:
    """Small enough for a phone and a diff."""
    import nbformat

    if (length := len(nbformat.writes(notebook))) > MAX_BYTES:
        yield "", f"{length} bytes", f"keep fewer figures: {MAX_BYTES} at most"


def metadata(notebook: NotebookNode, kind: str) -> Iterator[Broken]:
    """The notebook says what it is, for the report and for the first page."""
    try:
        entry_of(notebook, "")
    except CatalogueError as error:
        yield "", error.what, error.mend


RULES = (
    kernel,
    first_cell,
    headings,
    cell_ids,
    parameters,
    last_cell,
    lengths,
    forbidden,
    guesses,
    stray_metadata,
    outputs,
    compares,
    size,
    metadata,
)
