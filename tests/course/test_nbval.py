"""What nbval compares under the project's own settings, and what it lets pass."""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
SHOW = "from helpers.measure import measured, predicted, show, show_table\nimport time\n"
DRAW = (
    "from matplotlib import pyplot\nfrom helpers.measure import measured_on, show_fig\n"
    "show_fig(pyplot.figure(), 'The roof is at 9 % [of 3] <today>', "
)
FIGURES = {  # as another day and another machine drew them
    origin: {
        "text/plain": f"[figure, {stamp}] The roof is at 7 % [of 2] <then>",
        "text/html": f'<figure style="margin:0"><img style="max-width:100%" alt="The roof is at 7 %" '
        f'src="data:image/png;base64,AAAA"><figcaption>{stamp}</figcaption></figure>',
    }
    for origin, stamp in {
        "measured": "measured on A40, 2026-01-01",
        "recorded": "recorded: H200, 2026-10-02, ncu",
    }.items()
}
CASES = {
    "a measured number may differ": (
        SHOW + "show('t', measured(time.time_ns() % 977, 's'))",
        "t: 3 s [measured]",
        True,
    ),
    "a predicted number may not": (SHOW + "show('t', predicted(4.0, 's'))", "t: 3 s [predicted]", False),
    "another printed number may not": ("print('x', 2)", "x 1\n", False),
    "a figure of measured numbers may differ": (DRAW + "stamp=measured_on('cpu'))", FIGURES["measured"], True),
    "a figure of recorded ones may not": (
        DRAW + "stamp='recorded: H200, 2026-10-02, ncu')",
        FIGURES["recorded"],
        False,
    ),
    "columns follow their numbers": (
        SHOW + "show_table(('a', 'b', 'c'), [('r', measured(1234.5, 'B'), 'end')])",
        "a  b               c\n─  ──────────────  ───\nr  7 B [measured]  end",
        True,
    ),
}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """What pytest says of one notebook with a cell a case."""
    path = tmp_path_factory.mktemp("nbval") / "cases.ipynb"
    cells = []
    for count, (source, text, _) in enumerate(CASES.values(), 1):
        cell = nbformat.v4.new_code_cell(source, metadata={"tags": ["nbval-check-output"]}, execution_count=count)
        data = text if isinstance(text, dict) else {"text/plain": text}
        plain = nbformat.v4.new_output("display_data", data=data)
        cell.outputs = [plain] if "show" in source else [nbformat.v4.new_output("stream", text=text)]
        if "show_table(" in source:
            html = (
                '<table><thead><tr><th scope="col">a</th><th scope="col">b</th><th scope="col">c</th></tr></thead>'
                "<tbody><tr><td>r</td><td>7 B [measured]</td><td>end</td></tr></tbody></table>"
            )
            plain.data["text/html"] = html
        cells.append(cell)
    untagged = nbformat.v4.new_code_cell("print('now')", execution_count=len(CASES) + 1)
    untagged.outputs = [nbformat.v4.new_output("stream", text="before\n")]
    nbformat.write(nbformat.v4.new_notebook(cells=[*cells, untagged]), path)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rA",
        "--nbval-lax",
        "-c",
        str(ROOT / "pyproject.toml"),
        str(path),
    ]
    done = subprocess.run([*command, f"--rootdir={ROOT}"], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout


@pytest.mark.parametrize("place", range(len(CASES)), ids=list(CASES))
def test_what_nbval_compares(outcome, place):
    passes = list(CASES.values())[place][2]
    lines = [
        line for line in outcome.splitlines() if line.startswith(("PASSED", "FAILED")) and f"::Cell {place}" in line
    ]
    assert len(lines) == 1, outcome
    assert lines[0].startswith("PASSED") == passes, outcome


def test_an_untagged_cell_is_run_but_not_compared(outcome):
    assert any(line.startswith("PASSED") and f"::Cell {len(CASES)}" in line for line in outcome.splitlines())
