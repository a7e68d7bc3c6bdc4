"""No dead end: the pages that dispatch shaders run to their last cell on a machine without Vulkan."""

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from helpers.course.outcome import evidence
from helpers.edge.vulkan.loader import LIBRARY_VARIABLE

ROOT = Path(__file__).parents[2]
PAGES = [
    "notebooks/00_start_here.ipynb",
    "notebooks/edge/01_first_dispatch.ipynb",
    "notebooks/edge/02_whose_memory_is_it.ipynb",
    "notebooks/edge/03_the_matmul_ladder.ipynb",
    "notebooks/edge/04_lanes_that_agree.ipynb",
    "notebooks/edge/05_matrix_units.ipynb",
    "notebooks/edge/06_the_metal_twin.ipynb",
    "solutions/edge/01_saxpy.ipynb",
    "solutions/edge/02_zero_copy_filter.ipynb",
    "solutions/edge/03_climb.ipynb",
    "solutions/edge/04_fused_softmax.ipynb",
    "solutions/edge/05_int4_matvec.ipynb",
    "solutions/edge/06_cooperative_gemm.ipynb",
]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_ends_and_says_what_to_install(page):
    path = ROOT / page
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(path.parent)}})
    client.execute(env=os.environ | {LIBRARY_VARIABLE: "absent.so", "COURSE_RUN_TOKEN": "t"})
    assert evidence(notebook, "t").sentinel
    words = str([cell.outputs for cell in notebook.cells if cell.cell_type == "code"])
    assert "apt-get install libvulkan1" in words
    assert "SKIPPED" in words or "simulated" in words or "NumPy" in words
