"""Two `torchrun` agents, as on two nodes: they meet on one endpoint, and train as one process does."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import psutil
import pytest

from helpers.training.loop import Trainer
from helpers.training.presets import load_preset

STEPS = 2
DEADLINE_S = 120
ENDLESS = "100000"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def two_agents(folder, ranks_each: int, *options: str):
    """The agents of two nodes, as processes; what each prints goes to `folder/agent-N`. None is left."""
    meet = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=test"]
    launcher = ["-m", "torch.distributed.run", *meet, "--local-addr=127.0.0.1", f"--nproc_per_node={ranks_each}"]
    script = ["-m", "helpers.training.train", "--preset", "tiny", *options]
    agents = []
    try:
        for node in range(2):
            with (folder / f"agent-{node}").open("w") as said:
                command = [sys.executable, *launcher, *script]
                agents.append(subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT))
        yield agents
    finally:
        for agent in agents:
            agent.terminate()  # torchrun passes it on to its ranks
        for agent in agents:
            agent.wait(DEADLINE_S)


def ranks_of(agent: subprocess.Popen) -> list[psutil.Process]:
    return [one for one in psutil.Process(agent.pid).children() if "helpers.training.train" in one.cmdline()]


def losses_in(file) -> list[float]:
    return [json.loads(line)["loss"] for line in file.read_text().splitlines()] if file.is_file() else []


def exit_codes(agents, folder) -> list[int]:
    try:
        return [agent.wait(DEADLINE_S) for agent in agents]
    except subprocess.TimeoutExpired:
        pytest.fail(f"the agents did not end:\n{(folder / 'agent-0').read_text()}")


@pytest.fixture(scope="module")
def expected():
    trainer = Trainer(load_preset("tiny"))
    return [trainer.step().loss for _ in range(STEPS)]


@pytest.mark.parametrize(("ranks_each", "plan"), [(1, []), (2, ["--replicas", "2"])], ids=["1 rank", "2 ranks"])
def test_two_nodes_take_the_steps_of_one_process(tmp_path, expected, ranks_each, plan):
    file = tmp_path / "metrics.jsonl"
    with two_agents(tmp_path, ranks_each, "--steps", str(STEPS), "--metrics", str(file), *plan) as agents:
        assert exit_codes(agents, tmp_path) == [0, 0], (tmp_path / "agent-0").read_text()
    assert losses_in(file) == pytest.approx(expected, abs=1e-5)
    printed = sorted((tmp_path / f"agent-{node}").read_text().count("loss") for node in range(2))
    assert printed == [0, STEPS], "one rank of all speaks"


@pytest.mark.parametrize("node", [0, 1])
def test_the_death_of_a_rank_ends_both_agents_with_an_error(tmp_path, node):
    file = tmp_path / "metrics.jsonl"
    with two_agents(tmp_path, 1, "--steps", ENDLESS, "--metrics", str(file)) as agents:
        limit = time.monotonic() + DEADLINE_S
        while not losses_in(file):
            assert time.monotonic() < limit and all(agent.poll() is None for agent in agents)
            time.sleep(0.05)
        ranks = [rank for agent in agents for rank in ranks_of(agent)]
        os.kill(ranks_of(agents[node])[0].pid, signal.SIGKILL)
        assert exit_codes(agents, tmp_path) == [1, 1]
    assert not psutil.wait_procs(ranks, timeout=10)[1], "no rank outlives its agent"
    assert "Signal 9 (SIGKILL)" in (tmp_path / f"agent-{node}").read_text()
