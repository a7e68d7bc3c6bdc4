"""Showing stamped quantities in a notebook, so that the page and the run report agree.

The quantity travels in the *metadata* of the cell's output. nbval does not compare metadata, and
the runner reads it from the executed notebook: no file and no global state are involved.
"""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from helpers.measure.quantity import Quantity

METADATA_KEY = "course_quantities"


@dataclass(frozen=True)
class Table:
    """Rows of text and quantities under headers, as text and as HTML.

    headers: column titles. rows: each as long as `headers`; a `Quantity` prints with its stamp.
    """

    headers: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]

    def __str__(self) -> str:
        lines = [self.headers, *(tuple(map(str, row)) for row in self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.headers))]
        text = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths)).rstrip() for line in lines]
        return "\n".join([text[0], "  ".join("─" * width for width in widths), *text[1:]])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "".join(f'<th scope="col">{html.escape(title)}</th>' for title in self.headers)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>" for row in self.rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def show(name: str, quantity: Quantity) -> None:
    """Print `name: value unit [stamp]` and hand the quantity to the run report."""
    _display({"text/plain": f"{name}: {quantity}"}, [(name, quantity)])


def show_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; its quantities reach the run report as `row's first cell · column title`."""
    table = Table(tuple(headers), tuple(tuple(row) for row in rows))
    named = [
        (f"{row[0]} · {title}", cell)
        for row in table.rows
        for title, cell in zip(table.headers, row)
        if isinstance(cell, Quantity)
    ]
    _display({"text/plain": str(table), "text/html": table._repr_html_()}, named)


def _display(data: dict[str, str], quantities: list[tuple[str, Quantity]]) -> None:
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.display import display

    if not InteractiveShell.initialized():
        print(data["text/plain"])
        return
    metadata = {METADATA_KEY: [{"name": name} | q.to_json() for name, q in quantities]}
    display(data, raw=True, metadata=metadata)
