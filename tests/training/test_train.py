"""The script, as a user starts it."""

import json
import subprocess
import sys

import pytest

from helpers.training.launch import LaunchError, torchrun
from helpers.training.train import main

SCRIPT = [sys.executable, "-m", "helpers.training.train"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    file = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    command = [*SCRIPT, "--steps", "3", "--metrics", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout, [json.loads(line) for line in file.read_text().splitlines()], file


def test_one_process_prints_and_writes_a_line_a_step(alone):
    printed, metrics, file = alone
    lines = printed.splitlines()
    assert [line["step"] for line in metrics] == [1, 2, 3]
    assert len(lines) == 3 and all(f"loss {one['loss']:7.4f}" in line for one, line in zip(metrics, lines))
    assert all("tokens/s" in line and "MFU" in line and "MiB" in line for line in lines)
    assert [path.name for path in file.parent.iterdir()] == ["metrics.jsonl"]


def test_torchrun_on_two_ranks_takes_the_same_steps(alone):
    _, expected, _ = alone
    run = torchrun(2, "--steps", "3")
    assert len(run.printed.splitlines()) == 3
    for one, many in zip(expected, run.metrics, strict=True):
        assert many["loss"] == pytest.approx(one["loss"], abs=1e-4)
        assert many["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-3)


def test_ranks_that_do_not_divide_the_batch_end_with_the_reason():
    with pytest.raises(LaunchError, match="does not divide among 3 ranks"):
        torchrun(3, "--steps", "1")


def test_a_deadline_ends_the_script():
    with pytest.raises(LaunchError, match=r"did not end within 0\.5 s"):
        torchrun(1, "--steps", "100000", deadline_s=0.5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--preset", "tinny"], "did you mean 'tiny'"),
        (["--metrics", "no/such/folder/file.jsonl", "--steps", "1"], "cannot write metrics"),
    ],
)
def test_errors_of_use_end_with_2_and_the_mend(arguments, words, capsys):
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


def test_time_that_is_over_stops_before_the_next_step(capsys):
    assert main(["--steps", "50", "--seconds", "0"]) == 0
    assert capsys.readouterr().out == ""
