"""The runner on tiny bad notebooks: each must end in its own state, and leave nothing behind."""

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

import psutil
import pytest
from nbformat import write
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from helpers import cli
from helpers.course import run
from helpers.course.report import State, read_summary

SHOW = 'from helpers.measure import measured, show\nshow("a", measured(1.0, "s"))'
FINISH = "from helpers.course.lesson import finish\nfinish()"
STALE = {"output_type": "display_data", "data": {"text/plain": "finished"}, "metadata": {"course_sentinel": ""}}
BAD = {
    "good": ([SHOW, FINISH], State.PASS),
    "noise": (["import sys\nprint('noise', file=sys.stderr)", SHOW, FINISH], State.PASS),
    "orphan": (
        ["import subprocess\nsubprocess.Popen(['sleep', '98765'], start_new_session=True)", SHOW, FINISH],
        State.PASS,
    ),
    "huge": (["print('x' * 1_000_000)", SHOW, FINISH], State.PASS),
    "raises": (["1 / 0", FINISH], State.FAIL),
    "exits": (["import sys\nsys.exit(0)", SHOW, FINISH], State.FAIL),
    "no_sentinel": ([SHOW], State.FAIL),
    "stale": ([SHOW, "pass"], State.FAIL),
    "dies": (["import os\nos.kill(os.getpid(), 9)", FINISH], State.DIED),
    "vacuous": (["1", FINISH], State.VACUOUS),
}


def notebook_at(root, name, cells):
    path = root / "notebooks" / "training" / f"{name}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    parameters = new_code_cell('target: str = "cpu"', id="parameters", metadata={"tags": ["parameters"]})
    code = [new_code_cell(source, id=f"cell-{number}") for number, source in enumerate(cells)]
    if name == "stale":
        code[-1].outputs, code[-1].execution_count = [STALE], 9
    course = {"title": name, "minutes": 1, "live": "", "otherwise": "", "how": ""}
    notebook = new_notebook(cells=[new_markdown_cell("# t", id="title"), parameters, *code])
    notebook.metadata = {"course": course, "kernelspec": {"name": "python3", "display_name": "Python 3"}}
    write(notebook, path)
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp("course")
    for name, (cells, _) in BAD.items():
        notebook_at(root, name, cells)
    code = cli.main(["run", "--target", "cpu", "--root", str(root), "--out", str(root / "runs"), "--jobs", "2"])
    folder = next((root / "runs").iterdir())
    return code, folder, {r.notebook.split("/")[1]: r for r in read_summary(folder)[0]}


@pytest.mark.parametrize("name", BAD)
def test_each_notebook_ends_in_its_own_state(finished, name):
    assert finished[2][name].state == BAD[name][1], finished[2][name].error


def test_a_failure_names_its_cell_and_the_page_has_its_anchor(finished):
    code, folder, results = finished
    assert code == 1
    assert results["raises"].cell_id == "cell-0"
    assert results["raises"].error.startswith("ZeroDivisionError")
    assert 'id="cell-id=cell-0"' in (folder / results["raises"].page).read_text(encoding="utf-8")


def test_nothing_that_a_notebook_started_is_left(finished):
    assert not [p for p in psutil.process_iter(["cmdline"]) if "98765" in (p.info["cmdline"] or [])]


def test_huge_output_is_cut_and_pages_load_nothing(finished):
    _, folder, results = finished
    assert (folder / results["huge"].page).with_suffix(".ipynb").stat().st_size < 2 * run.OUTPUT_CAP
    text = (folder / results["good"].page).read_text(encoding="utf-8")
    assert "cdnjs" not in text and 'src="http' not in text


def test_junit_counts_as_the_summary_does(finished):
    suite = ElementTree.parse(finished[1] / "junit.xml").getroot()
    assert len(suite.findall("testcase")) == len(BAD)
    bad = sum(state not in (State.PASS, State.SKIPPED) for _, state in BAD.values())
    assert len(suite.findall("testcase/failure")) == bad == int(suite.get("failures"))


@pytest.mark.parametrize(
    ("parameters", "what"), [({"tagret": "cpu"}, "unknown parameter 'tagret'"), ({"target": 3}, "a int")]
)
def test_unknown_and_mistyped_parameters_are_refused(tmp_path, parameters, what):
    with pytest.raises(run.RunError, match=what):
        run.check_parameters(notebook_at(tmp_path, "p", [FINISH]), parameters)


def test_a_typo_in_the_target_and_a_broken_summary_are_errors_of_use(tmp_path, capsys):
    assert cli.main(["run", "--target", "cpuu"]) == 2
    assert "did you mean 'cpu'" in capsys.readouterr().err
    (tmp_path / "summary.json").write_text("{", encoding="utf-8")
    assert cli.main(["report", str(tmp_path)]) == 2
    assert "summary.json" in capsys.readouterr().err


def test_resume_runs_only_what_changed(tmp_path):
    notebook_at(tmp_path, "a", [SHOW, FINISH])
    notebook_at(tmp_path, "b", [SHOW, FINISH])
    words = ["run", "--target", "cpu", "--root", str(tmp_path), "--out", str(tmp_path / "runs")]
    assert cli.main(words) == 0
    notebook_at(tmp_path, "b", [SHOW, "1", FINISH])
    assert cli.main([*words, "--resume"]) == 0
    newest = read_summary(max((tmp_path / "runs").iterdir()))[0]
    assert {r.notebook: r.carried_over for r in newest} == {"training/a": True, "training/b": False}


def test_an_interrupt_writes_the_partial_report_and_leaves_nothing(tmp_path):
    notebook_at(tmp_path, "a", [SHOW, FINISH])
    notebook_at(tmp_path, "b", ["import subprocess\nsubprocess.run(['sleep', '87654'])", FINISH])
    words = ["--target", "cpu", "--root", str(tmp_path), "--out", str(tmp_path / "runs")]
    command = [sys.executable, "-m", "helpers.cli", "run", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def sleeping():
        return [p for p in psutil.process_iter(["cmdline"]) if "87654" in (p.info["cmdline"] or [])]

    end = time.monotonic() + 60
    while not sleeping() and time.monotonic() < end:
        time.sleep(0.2)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(timeout=30) == 130
    assert not sleeping()
    summary = json.loads(next((tmp_path / "runs").glob("*/summary.json")).read_text(encoding="utf-8"))
    assert [r["notebook"] for r in summary["results"]] == ["training/a"]
