"""The executed notebook as a page that needs no network, and as a notebook file."""

import re
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from helpers.course.files import write_atomically

MAX_OUTPUT = 100_000
NOISE = re.compile(r"^USDT:.*\n?", re.MULTILINE)
STYLE = """<style>
:root { color-scheme: light dark; }
body { max-width: 52rem; margin: 0 auto; padding: 0 1rem; }
@media (max-width: 40rem) { .jp-InputPrompt, .jp-OutputPrompt { display: none !important; } }
</style>"""


def publish(notebook: NotebookNode, output: Path, title: str) -> str:
    """Write `output` (.ipynb) and the page beside it (.html); returns the page's name.

    Outputs above `MAX_OUTPUT` characters are cut with a line that says so.
    """
    quieten(notebook)
    bound(notebook)
    write_atomically(output, nbformat.writes(notebook) + "\n")
    page = output.with_suffix(".html")
    write_atomically(page, html_of(notebook, title))
    return page.name


def quieten(notebook: NotebookNode) -> None:
    """Take out in place the two lines that Kineto writes for each trace: they are for tracers of the system."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                output.text = NOISE.sub("", output.text)
        if "outputs" in cell:
            cell.outputs = [one for one in cell.outputs if one.output_type != "stream" or one.text]


def bound(notebook: NotebookNode) -> None:
    """Cut long texts in place, so that one noisy cell cannot make a page that no browser opens."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if len(output.get("text", "")) > MAX_OUTPUT:
                output.text = _cut(output.text)
            plain = output.get("data", {}).get("text/plain", "")
            if len(plain) > MAX_OUTPUT:
                output.data["text/plain"] = _cut(plain)


def _cut(text: str) -> str:
    half = MAX_OUTPUT // 2
    return f"{text[:half]}\n… {len(text) - MAX_OUTPUT} characters left out …\n{text[-half:]}"


def html_of(notebook: NotebookNode, title: str) -> str:
    """One self-contained page: an anchor `cell-ID` at each cell, and no script from a network.

    Formulas stay as they are written, for MathJax would have to be fetched.
    """
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(template_name="lab")
    exporter.mathjax_url = exporter.require_js_url = exporter.jquery_url = exporter.mermaid_js_url = ""
    body, _ = exporter.from_notebook_node(notebook, resources={"metadata": {"name": title}})
    body = re.sub(r"<script[^>]*\bsrc=[^>]*>\s*</script>", "", body)
    body = re.sub(r"<script type=\"module\">.*?</script>", "", body, flags=re.DOTALL)
    body = re.sub(r'id="cell-id=([^"]+)"', r'id="cell-\1"', body)
    return body.replace("</head>", f"{STYLE}</head>", 1)
