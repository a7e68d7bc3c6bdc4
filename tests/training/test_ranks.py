"""Real processes: every way a rank can end, and that nothing is left behind."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
import torch
import torch.distributed as dist

from helpers.training.ranks import Ranks, RanksError


def total():
    value = torch.tensor(float(dist.get_rank() + 1))
    dist.all_reduce(value)
    print(f"sum {value.item():g}")
    return dist.get_rank(), value.item()


def remember(add, state):
    state["sum"] = state.get("sum", 0) + add
    return state["sum"]


def surroundings():
    return torch.get_num_threads(), os.environ["RANK"], os.environ["WORLD_SIZE"], os.getpid()


def one_raises():
    if dist.get_rank() == 1:
        raise ValueError("a bad value")
    dist.barrier()


def all_raise():
    raise ZeroDivisionError("nothing to divide by")


def one_is_killed():
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def shapes_differ():
    dist.all_reduce(torch.ones(2 + 5 * dist.get_rank()))
    dist.barrier()


def one_exits():
    if dist.get_rank() == 0:
        sys.exit(3)
    dist.barrier()


def one_vanishes():
    if dist.get_rank() == 0:
        os._exit(4)
    dist.barrier()


def one_stays_away():
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1))
    else:
        time.sleep(60)


class Unreadable:
    def __reduce__(self):
        return int, ("not a number",)


def gone(pids, within_s=10.0):
    limit = time.monotonic() + within_s
    while time.monotonic() < limit:
        if not any(_runs(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def _runs(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="module")
def pair():
    with Ranks(2) as ranks:
        yield ranks


def test_results_and_output_come_in_rank_order(pair, capsys):
    assert pair.run(total) == [(0, 3.0), (1, 3.0)]
    assert capsys.readouterr().out == "[rank 0] sum 3\n[rank 1] sum 3\n"
    assert pair.outputs == ("sum 3\n", "sum 3\n")


def test_state_outlives_a_call_and_is_each_ranks_own(pair):
    assert pair.run(lambda state: state.update(rank=dist.get_rank())) == [None, None]
    assert pair.run(lambda state: state["rank"]) == [0, 1]
    assert [pair.run(remember, 2), pair.run(remember, 3)] == [[2, 2], [5, 5]]


def test_functions_of_a_cell_travel_with_what_they_close_over(pair):
    factor = 7
    assert pair.run(lambda x: factor * x + dist.get_rank(), 3) == [21, 22]


def test_ranks_know_their_place(pair):
    from helpers.hardware.capabilities import usable_cores

    found = pair.run(surroundings)
    threads = max(1, usable_cores() // 2)
    assert [place[:3] for place in found] == [(threads, "0", "2"), (threads, "1", "2")]
    assert tuple(place[3] for place in found) == pair.pids


def test_large_tensors_go_both_ways(pair):
    sent = torch.arange(2_000_000)
    assert all(torch.equal(result, sent + 1) for result in pair.run(lambda x: x + 1, sent))


def test_what_cannot_be_sent_leaves_the_pool_open(pair):
    import threading

    with pytest.raises(RanksError, match="cannot be sent"):
        pair.run(len, threading.Lock())
    assert pair.run(dist.get_rank) == [0, 1]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (one_raises, r"^rank 1 raised ValueError: a bad value\n[\s\S]*in one_raises: raise ValueError"),
        (one_raises, r"rank 0 waited in barrier, called at training/test_ranks.py"),
        (all_raise, r"^all 2 ranks raised ZeroDivisionError: nothing to divide by"),
        (one_is_killed, r"^rank 1 was killed by SIGKILL[\s\S]*out of memory"),
        (shapes_differ, r"was killed by SIGABRT; last words: [\s\S]*compare the shapes"),
        (one_exits, r"^rank 0 called sys.exit\(3\)"),
        (one_vanishes, r"^rank 0 ended with exit code 4 before it answered"),
        (Unreadable, r"returned a result that cannot be read here: ValueError"),
    ],
)
def test_a_rank_that_fails_is_named_and_none_is_left(function, words):
    with pytest.raises(RanksError, match=words), Ranks(2) as ranks:
        pids = ranks.pids
        ranks.run(function, deadline_s=30)
    assert len(pids) == 2 and gone(pids, within_s=1)


def test_a_missed_deadline_says_where_each_rank_waits():
    with Ranks(2) as ranks:
        pids = ranks.pids
        with pytest.raises(RanksError) as caught:
            ranks.run(one_stays_away, deadline_s=1)
        assert caught.value.what == "all 2 ranks did not answer within 1 s"
        first, second, *collectives = caught.value.where.splitlines()
        assert "rank 0 waited in all_reduce, called at training/test_ranks.py" in first
        assert "rank 1 waited at training/test_ranks.py" in second and "time.sleep(60)" in second
        assert any("rank 1 never called collective 1; it has called none" in line for line in collectives)
        assert gone(pids, within_s=1)
        with pytest.raises(RanksError, match=r"closed[\s\S]*Ranks\(2\)"):
            ranks.run(total)


def test_leaving_and_closing_end_the_ranks():
    with Ranks(2) as ranks:
        pids = ranks.pids
    ranks.close()
    assert ranks.pids == () and gone(pids, within_s=1)


def test_an_exception_of_the_caller_ends_the_ranks():
    with pytest.raises(KeyError), Ranks(2) as ranks:
        pids = ranks.pids
        raise KeyError
    assert gone(pids, within_s=1)


PARENT = """
import sys, time
from helpers.training.ranks import Ranks
ranks = Ranks(2)
from helpers.training.rank_server import shared_server
print(*ranks.pids, shared_server()._process.pid, flush=True)
try:
    ranks.run(lambda: time.sleep(60))
except KeyboardInterrupt:
    print("interrupted", ranks.pids, flush=True)
"""


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_ranks_end_with_their_parent_even_in_the_middle_of_a_call(ending):
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        pids = [int(word) for word in parent.stdout.readline().split()]
        time.sleep(0.5)
        parent.send_signal(ending)
        rest = parent.stdout.read()
    assert len(pids) == 3 and gone(pids)
    assert rest == ("interrupted ()\n" if ending is signal.SIGINT else "")


def test_a_plain_script_without_a_main_guard_works(tmp_path):
    script = tmp_path / "plain.py"
    script.write_text(
        "from helpers.training.ranks import Ranks\n"
        "print('once')\n"
        "def f():\n    import os\n    return int(os.environ['RANK'])\n"
        "with Ranks(2) as ranks:\n    print(ranks.run(f))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout == "once\n[0, 1]\n"


@pytest.mark.parametrize(
    ("count", "device", "words"),
    [(0, "cpu", "0 is not a number of ranks"), (2, "tpu", "'tpu'"), (1.5, "cpu", "1.5")],
)
def test_impossible_pools_are_refused(count, device, words):
    with pytest.raises(RanksError, match=words):
        Ranks(count, device)


@pytest.mark.skipif(torch.cuda.device_count() >= 64, reason="this machine has 64 GPUs")
def test_more_cuda_ranks_than_gpus_are_refused():
    with pytest.raises(RanksError, match="64 CUDA ranks need 64 GPUs"):
        Ranks(64, "cuda")
