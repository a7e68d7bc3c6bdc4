"""No dead end: the page on Metal ends without compiler and Vulkan, and says what is recorded and why."""

import os
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from helpers.course.outcome import evidence
from helpers.edge.vulkan.loader import LIBRARY_VARIABLE

PAGE = Path(__file__).parents[2] / "notebooks/edge/06_the_metal_twin.ipynb"


def text_of(cell) -> str:
    return "".join(str(output.get("text", output.get("data"))) for output in cell.outputs)


def test_the_page_shows_what_was_recorded():
    notebook = nbformat.read(PAGE, as_version=4)
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(PAGE.parent)}})
    client.execute(env=os.environ | {LIBRARY_VARIABLE: "absent.so", "PATH": "/absent", "COURSE_RUN_TOKEN": "t"})
    assert evidence(notebook, "t").sentinel
    said = {cell.id: text_of(cell) for cell in notebook.cells if cell.cell_type == "code"}
    assert "apt-get install g++" in said["stand-in"]
    for fault in ("out-of-bounds", "race", "divergent"):
        assert "not run: there is no g++" in said[fault] and "Recorded with" in said[fault] and "line" in said[fault]
    for result in ("show-bits", "show-why", "inductor-show", "slang-show"):
        assert "[recorded: " in said[result] and "[simulated: " not in said[result]
    assert "0 of 0 run" in said["bits-predicted"]
