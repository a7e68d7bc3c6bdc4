"""The runner on tiny bad notebooks: each ends in its own state, and leaves nothing behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from xml.etree import ElementTree

import nbformat
import psutil
import pytest

from helpers import cli
from helpers.course import pages, report
from helpers.course.outcome import State
from helpers.course.run import RunError, earlier_runs

SHOW = 'from helpers.measure import measured, show\nshow("a", measured(1.0, "s"))'
FINISH = "from helpers.course import finish\nfinish()"
ORPHAN = "subprocess.Popen(['sleep', '98765'], start_new_session=True)"
VERDICT = "from IPython.display import display\ndisplay({'text/plain': 'x'}, raw=True, metadata={'course_check': %r})"
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
STALE = nbformat.v4.new_output("display_data", data={"text/plain": "finished"}, metadata={"course_sentinel": ""})
CASES = {
    "good": ([SHOW, FINISH], State.PASS, ""),
    "noise": (["import sys\nprint('noise', file=sys.stderr)", SHOW, FINISH], State.PASS, ""),
    "orphan": ([f"import subprocess\n{ORPHAN}", SHOW, FINISH], State.PASS, ""),
    "huge": (["print('x' * 1_000_000)", SHOW, FINISH], State.PASS, ""),
    "checked": ([VERDICT % {"id": "edge.1", "state": "SKIPPED"}, FINISH], State.PASS, ""),
    "raises": ([SHOW, "1 / 0", FINISH], State.FAIL, "ZeroDivisionError: division by zero"),
    "exits": (["import sys\nsys.exit(0)", SHOW, FINISH], State.FAIL, "SystemExit|sentinel"),
    "leaves": (["import os\nos._exit(0)", SHOW, FINISH], State.KERNEL_DIED, "kernel died"),
    "dies": (["import os\nos.kill(os.getpid(), 9)", FINISH], State.KERNEL_DIED, "kernel died"),
    "no_sentinel": ([SHOW], State.FAIL, "sentinel"),
    "stale": ([SHOW, "pass"], State.FAIL, "sentinel"),
    "early": ([FINISH, SHOW], State.FAIL, "sentinel"),
    "not_yet": (
        [VERDICT % {"id": "edge.1", "state": "NOT YET"}, FINISH],
        State.FAIL,
        "check edge.1 answered NOT YET",
    ),
    "vacuous": (["1", FINISH], State.VACUOUS, "no quantity"),
    "endless": (["import time\ntime.sleep(600)", FINISH], State.TIMEOUT, ""),
}


def notebook_at(root, name, sources, folder="notebooks/training"):
    cells = [nbformat.v4.new_code_cell(source, id=f"cell-{place}") for place, source in enumerate(sources)]
    if name == "stale":
        cells[-1].outputs, cells[-1].execution_count = [STALE], 9
    first = nbformat.v4.new_code_cell('target: str = "cpu"', id="parameters", metadata={"tags": ["parameters"]})
    course = {"title": f"The {name} one", "minutes": 1, "live": "", "otherwise": "", "how": ""}
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# t", id="title"), first, *cells])
    notebook.metadata = {"course": course, "kernelspec": KERNEL}
    path = root / folder / f"{name}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)
    return path


def words(root, *more):
    return ["run", "--target", "cpu", "--root", str(root), "--out", str(root / "runs"), *more]


SLURM = {  # one job is taken, the next is not
    "sbatch": "mkdir taken && echo Submitted batch job 7 && exit; echo sbatch: error: Invalid account >&2; exit 1",
    "scancel": 'echo "$@" >> cancelled',
    "srun": "exit 1",
    "sacct": "exit 1",
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """(exit code, run folder, outcomes by name) of one run of all cases, two at a time."""
    root = tmp_path_factory.mktemp("course")
    for name, (sources, _, _) in CASES.items():
        notebook_at(root, name, sources)
    patch = pytest.MonkeyPatch()
    patch.setattr("helpers.hardware.targets.Target.timeout", lambda self, name: 6 if "endless" in name else 60)
    code = cli.main(words(root, "--jobs", "2"))
    patch.undo()
    folder = earlier_runs(root / "runs")[-1]
    return code, folder, {o.notebook.rpartition("/")[2]: o for o in report.read(folder).outcomes}


@pytest.mark.parametrize("name", CASES)
def test_each_notebook_ends_in_its_own_state(finished, name):
    _, state, why = CASES[name]
    outcome = finished[2][name]
    assert outcome.state is state, outcome.why
    assert re.search(why, outcome.why) and bool(outcome.why) == (state is not State.PASS)


def test_one_failure_stops_nothing_and_the_exit_code_tells(finished):
    assert finished[0] == 1 and set(finished[2]) == set(CASES)


def test_a_failure_links_to_an_anchor_that_the_page_has(finished):
    _, folder, outcomes = finished
    assert outcomes["raises"].cell == "cell-1"
    assert 'id="cell-cell-1"' in (folder / outcomes["raises"].page).read_text()
    assert f'href="{outcomes["raises"].page}#cell-cell-1"' in (folder / "index.html").read_text()


def test_nothing_that_a_notebook_started_is_left(finished):
    assert [p for p in psutil.process_iter(["cmdline"]) if "98765" in (p.info["cmdline"] or [])] == []


def test_huge_output_is_cut_with_a_word(finished):
    _, folder, outcomes = finished
    executed = (folder / outcomes["huge"].page).with_suffix(".ipynb")
    assert executed.stat().st_size < 200_000 and "characters left out" in executed.read_text()


def test_what_kineto_writes_for_tracers_is_left_out_and_all_else_stays():
    def book(*texts):
        streams = [nbformat.v4.new_output("stream", name="stderr", text=text) for text in texts]
        return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("f()", outputs=streams)])

    marks = "USDT:2026-12-02 7:7 S.cpp:52] profiler_start\nUSDT:2026-12-02 7:7 S.cpp:59] profiler_stop"
    notebook = book(f"{marks}\nERROR: no USDT: here\n", marks)
    pages.quieten(notebook)
    assert [output.text for output in notebook.cells[0].outputs] == ["ERROR: no USDT: here\n"]


def test_pages_load_nothing_from_a_network(finished):
    _, folder, outcomes = finished
    for page in [folder / "index.html", *(folder / o.page for o in outcomes.values() if o.page)]:
        assert re.findall(r"""(?:src|href)=["'](?:https?:)?//[^"']+""", page.read_text()) == [], page


def test_what_was_measured_reaches_the_report(finished):
    _, folder, outcomes = finished
    [entry] = outcomes["good"].quantities
    assert (entry["name"], entry["value"], entry["origin"]) == ("a", 1.0, "measured")
    assert outcomes["good"].seconds > 0 and outcomes["good"].peak_bytes > 2**20
    assert outcomes["checked"].checks == {"edge.1": "SKIPPED"}
    text = (folder / "index.html").read_text()
    assert "1 s" in text and "[measured]" in text and "The good one" in text


def test_junit_counts_as_the_summary_does(finished):
    [suite] = ElementTree.parse(finished[1] / "junit.xml").getroot()
    bad = sum(state is not State.PASS for _, state, _ in CASES.values())
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == (str(len(CASES)), str(bad), "0")
    failed = {case.get("name").rpartition("/")[2] for case in suite if case.find("failure") is not None}
    assert failed == {name for name, (_, state, _) in CASES.items() if state is not State.PASS}


def test_no_draft_is_left(finished):
    assert [path for path in finished[1].rglob("*") if ".tmp" in path.name] == []


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["-p", "tagret", "cpu"], "no parameter 'tagret'"),
        (["-p", "target", "3"], "parameter target is 3, but must be str"),
        (["--only", "nothing*"], "no notebook matches 'nothing\\*'"),
        (["--jobs", "0"], "0 notebooks at a time"),
        (["--resume"], "no run to resume"),
        (["--resume", "nowhere"], "not a readable summary"),
    ],
)
def test_an_error_of_use_is_named_and_nothing_is_run(tmp_path, capsys, more, message):
    notebook_at(tmp_path, "a", [SHOW, FINISH])
    assert cli.main(words(tmp_path, *more)) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not list(tmp_path.glob("runs/*"))


def test_a_typo_in_the_target_is_named(capsys):
    assert cli.main(["run", "--target", "cpuu"]) == 2
    assert "did you mean 'cpu'" in capsys.readouterr().err


def test_a_target_that_this_machine_does_not_meet_is_skipped_with_the_reason(tmp_path, capsys):
    notebook_at(tmp_path, "a", [SHOW, FINISH])
    arguments = words(tmp_path)
    arguments[2] = "cuda-4"
    import torch

    if torch.cuda.device_count() >= 4:
        pytest.skip("this machine has four GPUs")
    assert cli.main(arguments) == 0
    [outcome] = report.read(earlier_runs(tmp_path / "runs")[-1]).outcomes
    assert outcome.state is State.SKIPPED and "cuda>=4" in outcome.why


def test_resume_runs_only_what_changed(tmp_path, capsys):
    notebook_at(tmp_path, "a", [SHOW, FINISH])
    notebook_at(tmp_path, "b", [SHOW, FINISH])
    assert cli.main(words(tmp_path)) == 0
    first = earlier_runs(tmp_path / "runs")[-1]
    time.sleep(1.1)  # runs are named by the second
    notebook_at(tmp_path, "b", [SHOW, "1", FINISH])
    capsys.readouterr()
    assert cli.main(words(tmp_path, "--resume")) == 0
    said = re.findall(r"✓ pass +(training/\w) +[\d.]+ s(, reused from [\d-]+ [\d:]+ UTC)?\n", capsys.readouterr().out)
    assert [(name, bool(reused)) for name, reused in said] == [("training/a", True), ("training/b", False)]
    second = earlier_runs(tmp_path / "runs")[-1]
    [ran] = [o.date for o in report.read(first).outcomes if o.notebook == "training/a"]
    outcomes = {o.notebook: o for o in report.read(second).outcomes}
    assert second != first and set(outcomes) == {"training/a", "training/b"}
    assert (second / outcomes["training/a"].page).resolve() == (first / "cpu/training/a.html").resolve()
    assert (outcomes["training/a"].reused, outcomes["training/b"].reused) == (ran, "")


def test_an_interrupt_leaves_a_report_and_no_process(tmp_path):
    notebook_at(tmp_path, "a", ["import subprocess\nsubprocess.run(['sleep', '87654'])", FINISH])
    notebook_at(tmp_path, "b", [SHOW, FINISH])
    command = [sys.executable, "-m", "helpers.cli", *words(tmp_path)]
    runner = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(600):
        if any("87654" in (p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])):
            break
        time.sleep(0.1)
    os.kill(runner.pid, signal.SIGINT)
    _, error = runner.communicate(timeout=60)
    assert runner.returncode == 130, error
    assert [p for p in psutil.process_iter(["cmdline"]) if "87654" in (p.info["cmdline"] or [])] == []
    outcomes = report.read(earlier_runs(tmp_path / "runs")[-1]).outcomes
    assert {o.notebook: (o.state, o.why) for o in outcomes} == {
        "training/a": (State.SKIPPED, "interrupted"),
        "training/b": (State.SKIPPED, "interrupted"),
    }


def test_the_same_course_runs_as_slurm_jobs(tmp_path, capsys):
    """submitit's local executor takes the path of its Slurm executor, job files and all."""
    notebook_at(tmp_path, "a", [SHOW, FINISH])
    notebook_at(tmp_path, "b", ["1 / 0", FINISH])
    assert cli.main(words(tmp_path, "--slurm", "local")) == 1
    folder = earlier_runs(tmp_path / "runs")[-1]
    states = {o.notebook: o.state for o in report.read(folder).outcomes}
    assert states == {"training/a": State.PASS, "training/b": State.FAIL}
    assert list((folder / "slurm").iterdir())


def test_a_cluster_or_an_option_that_does_not_exist_is_named(tmp_path, capsys):
    notebook_at(tmp_path, "a", [SHOW, FINISH])
    assert cli.main(words(tmp_path, "--slurm", "local", "--slurm-option", "colour=blue")) == 2
    assert "cannot submit to 'local'" in capsys.readouterr().err
    assert cli.main(words(tmp_path, "--slurm")) == 2
    assert "--slurm local" in capsys.readouterr().err
    assert not list(tmp_path.glob("runs/*")), "a refused run leaves no folder"


def test_a_job_that_the_cluster_refuses_takes_those_before_it_back(tmp_path, monkeypatch, capsys):
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, text in SLURM.items():
        (commands / name).write_text(f"#!/bin/sh\ncd {commands}\n{text}\n", encoding="utf-8")
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    notebook_at(tmp_path, "a", [SHOW, FINISH])
    notebook_at(tmp_path, "b", [SHOW, FINISH])
    assert cli.main(words(tmp_path, "--slurm")) == 2
    assert "the cluster refused a job: sbatch: error: Invalid account" in capsys.readouterr().err
    assert (commands / "cancelled").read_text() == "7\n" and not list(tmp_path.glob("runs/*"))


def test_only_runs_what_matches():
    from helpers.course.catalogue import ROOT
    from helpers.course.run import choose

    lessons = {f"training/{path.stem}" for path in (ROOT / "notebooks/training").glob("*.ipynb")}
    assert {entry.id for entry in choose(["training/*"], ROOT)} == lessons
    assert {entry.id for entry in choose(["training/*", "00_start_here"], ROOT)} == {*lessons, "00_start_here"}
    with pytest.raises(RunError, match="trainin/"):
        choose(["training/*", "trainin/*"], ROOT)


def test_the_summary_is_json_that_others_can_read(finished):
    content = json.loads((finished[1] / "summary.json").read_text())
    assert content["version"] == report.VERSION
    assert {"commit", "packages", "devices", "python", "dirty"} <= set(content["runs"][0])
