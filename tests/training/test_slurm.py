"""Slurm jobs through submitit's local executor, and through stand-ins for Slurm's own commands."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import submitit
from submitit.slurm.slurm import SlurmJobEnvironment

from helpers.errors import CourseError
from helpers.training.loop import Trainer
from helpers.training.presets import load_preset
from helpers.training.slurm import SlurmError, TrainTask, main, rendezvous, submit

STEPS = 12
SLURM = """
import os, pathlib, re, subprocess, sys

command, arguments = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
if command == "sbatch":
    said = dict(re.findall("#SBATCH --([a-z-]+)=(.*)", pathlib.Path(arguments[0]).read_text()))
    nodes, each = int(said["nodes"]), int(said["ntasks-per-node"])
    sizes = {"JOB_NUM_NODES": nodes, "NTASKS": nodes * each, "JOB_NODELIST": ",".join(["localhost"] * nodes)}
    sizes |= {"JOB_ID": os.getpid(), "TASKS_PER_NODE": each}
    environment = os.environ | {f"SLURM_{name}": str(value) for name, value in sizes.items()}
    subprocess.Popen(["bash", arguments[0]], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print("Submitted batch job", os.getpid())
if command == "srun":
    log, errors = (arguments[arguments.index(name) + 1] for name in ("--output", "--error"))
    work = arguments[arguments.index("--error") + 2:]
    tasks, each = (int(os.environ[f"SLURM_{name}"]) for name in ("NTASKS", "TASKS_PER_NODE"))
    started = []
    for task in range(tasks):
        places = {"PROCID": task, "NODEID": task // each, "LOCALID": task % each}
        environment = os.environ | {f"SLURM_{name}": str(value) for name, value in places.items()}
        names = (name.replace("%j", environment["SLURM_JOB_ID"]).replace("%t", str(task)) for name in (log, errors))
        out, err = (open(name, "a") for name in names)
        started.append(subprocess.Popen(work, env=environment, stdout=out, stderr=err))
    sys.exit(max(abs(one.wait()) for one in started))
"""


@pytest.fixture(scope="module")
def expected():
    trainer = Trainer(load_preset("tiny"))
    return [trainer.step().loss for _ in range(STEPS)]


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """`sbatch`, `srun` and `sacct` that run all tasks here, and tell each the node that it would be on."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in ("sbatch", "srun", "sacct"):
        (commands / name).write_text(f"#!{sys.executable}\n{SLURM}", encoding="utf-8")
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")


def log_of(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def losses_in(file: Path) -> list[float]:
    return [line["loss"] for line in log_of(file)]


def wait_for(condition, seconds: float = 90):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.05)


def test_a_local_job_takes_the_steps_of_one_process(tmp_path, expected):
    file = tmp_path / "metrics.jsonl"
    job = submit(["--steps", "2", "--metrics", str(file)], ranks_per_node=2, folder=tmp_path / "job", local=True)
    assert job.results() == [None, None], job.stderr()
    assert losses_in(file) == pytest.approx(expected[:2], abs=1e-5)
    assert job._process.wait() == 0


def test_tasks_on_two_nodes_find_each_other(tmp_path, slurm, expected):
    file = tmp_path / "metrics.jsonl"
    job = submit(["--steps", "2", "--metrics", str(file)], nodes=2, folder=tmp_path / "job")
    assert job.results() == [None, None], job.stderr()
    assert losses_in(file) == pytest.approx(expected[:2], abs=1e-5)


def test_a_preempted_job_is_submitted_again_and_resumes(tmp_path, expected):
    file = tmp_path / "metrics.jsonl"
    arguments = [
        "--steps",
        str(STEPS),
        "--metrics",
        str(file),
        "--checkpoint",
        str(tmp_path / "saved"),
        "--every",
        "2",
    ]
    job = submit(arguments, ranks_per_node=2, folder=tmp_path / "job", local=True)
    wait_for(lambda: len(log_of(file)) >= 5)
    for task in psutil.Process(job._process.pid).children():
        task.send_signal(signal.SIGUSR2)
    assert job.results() == [None, None], job.stderr()
    assert "resumed after step" in job.task(0).stdout()
    assert [line["step"] for line in log_of(file)] == list(range(1, STEPS + 1))
    assert losses_in(file) == pytest.approx(expected, abs=1e-5)


def test_only_a_task_that_keeps_checkpoints_runs_again():
    assert TrainTask(["--steps", "1"]).checkpoint() is None
    task = TrainTask(["--checkpoint", "somewhere"])
    assert task.checkpoint().function is task


def test_ranks_meet_on_the_first_host_of_the_node_list(monkeypatch):
    tasks = {"JOB_ID": 123_456, "NTASKS": 8, "JOB_NUM_NODES": 2, "PROCID": 6, "NODEID": 1, "LOCALID": 2}
    for name, value in (tasks | {"JOB_NODELIST": "gpu[07-08]"}).items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    found = rendezvous(SlurmJobEnvironment())
    assert found == {
        "RANK": "6",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "2",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "gpu07",
        "MASTER_PORT": "13456",
    }
    monkeypatch.setenv("SLURM_PROCID", "1")
    meeting = {name: found[name] for name in ("MASTER_ADDR", "MASTER_PORT")}
    assert rendezvous(SlurmJobEnvironment()) | meeting == rendezvous(SlurmJobEnvironment()), "all tasks compute it"


@pytest.mark.parametrize(
    ("options", "arguments", "words"),
    [
        (["--nodes", "0"], [], "--nodes is 0"),
        (["--ranks-per-node", "-1"], [], "--ranks-per-node is -1"),
        (["--nodes", "2"], [], "this machine only, not 2 nodes"),
        ([], ["--preset", "tinny"], "did you mean 'tiny'"),
        ([], ["--stepps", "1"], "does not take --stepps 1"),
        (["--ranks-per-node", "3"], [], "does not divide among 3 ranks"),
        (["--ranks-per-node", "2"], ["--replicas", "4"], "2 ranks are not a multiple of 4 replicas"),
        (["--option", "colour=blue"], [], "cannot submit to local"),
        (["--option", "timeout_min"], [], "write it as NAME=VALUE"),
    ],
)
def test_an_error_of_use_is_named_before_anything_is_submitted(tmp_path, capsys, options, arguments, words):
    folder = tmp_path / "job"
    assert main(["--folder", str(folder), "--local", *options, "--", *arguments]) == 2
    errors = capsys.readouterr().err
    assert words in errors and "mend:" in errors
    assert not list(folder.glob("*.pkl"))


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SlurmError, match="cannot write the job's files"):
        submit([], folder=tmp_path / "file", local=True)


def test_a_machine_without_slurm_is_told_of_local(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CourseError, match="try it here with --nodes 1 --local"):
        submit([], folder=tmp_path)


def test_what_goes_wrong_on_a_rank_is_in_the_result_and_in_its_log(tmp_path):
    job = submit(["--steps", "1", "--every", "0"], folder=tmp_path / "job", local=True)
    with pytest.raises(submitit.core.utils.FailedJobError, match="rank 0 ended with exit code 2"):
        job.results()
    assert "train: --every is 0" in job.stderr()


def test_a_local_job_is_waited_for(tmp_path):
    command = [sys.executable, "-m", "helpers.training.slurm", "--folder", str(tmp_path), "--local"]
    done = subprocess.run([*command, "--", "--steps", "1"], capture_output=True, text=True, check=True)
    first, second, step, end = done.stdout.splitlines()
    number, log = first.split()[1], second.split()[1]
    assert step.startswith("step    1") and step in Path(log).read_text() and end == "the job ended well"
    assert submitit.LocalJob(tmp_path, number).results() == [None]


def test_a_local_job_that_fails_says_why(tmp_path, capsys):
    assert main(["--folder", str(tmp_path), "--local", "--", "--steps", "1", "--every", "0"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[2:] == ["train: --every is 0", "the job failed: the .err file beside the log says more"]


def test_a_job_of_a_cluster_is_not_waited_for(tmp_path, slurm, capsys):
    """The command has returned before the rank could end: the stand-in's ranks run on."""
    assert main(["--folder", str(tmp_path / "job"), "--", "--steps", "1"]) == 0
    first, second, hint = capsys.readouterr().out.splitlines()
    number = first.split()[1]
    result = tmp_path / "job" / f"{number}_0_result.pkl"
    assert not result.exists() and ".err" in hint and second.endswith(f"{number}_0_log.out")
    wait_for(result.is_file)
