"""Notebook files read with a named error, and any file written so that nobody sees half of one."""

import os
import tempfile
from pathlib import Path

import nbformat

from helpers.errors import CourseError


class NotebookError(CourseError):
    """A notebook that cannot be read, or that failed while its outputs were to be stored."""


def read_notebook(path: Path) -> nbformat.NotebookNode:
    """Read and validate a notebook; `NotebookError` when it is not one."""
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, nbformat.ValidationError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise NotebookError(f"not a readable notebook: {first}", where=str(path), mend="restore it") from None
    return notebook


def write_atomically(path: Path, text: str) -> None:
    """Write `text` as UTF-8 to a temporary name beside `path`, then rename it; makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.chmod(draft, 0o644)
        os.replace(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
