"""Who waits in which collective, told from outside while the ranks hang."""

import json

import pytest
import torch
import torch.distributed as dist

from helpers.training.flight import MARK, Flight, compare_flights, read_flights
from helpers.training.ranks import Ranks, RanksError


def one_rank_leaves_early():
    dist.all_reduce(torch.ones(3))
    if dist.get_rank() != 1:
        dist.all_gather_into_tensor(torch.empty(12), torch.ones(4))


def other_collective():
    dist.barrier()
    if dist.get_rank():
        dist.all_reduce(torch.ones(5))
    else:
        dist.all_gather_into_tensor(torch.empty(2), torch.ones(1))


def test_the_report_names_who_never_called(capfd):
    with pytest.raises(RanksError) as caught, Ranks(3) as ranks:
        ranks.run(one_rank_leaves_early, deadline_s=2)
    text = str(caught.value)
    assert "rank 0 waits in collective 2: all_gather of [4]" in text
    assert "rank 2 waits in collective 2: all_gather of [4]" in text
    assert "rank 1 never called collective 2; its last was 1: all_reduce of [3]" in text
    assert MARK not in text


def test_the_report_names_ranks_that_call_different_collectives():
    with pytest.raises(RanksError) as caught, Ranks(2) as ranks:
        ranks.run(other_collective, deadline_s=2)
    assert "all_gather of [1]" in str(caught.value) and "all_reduce of [5]" in str(caught.value)


def entry(number, name="gloo:all_reduce", done=True):
    return {
        "process_group": ["0", "default_pg"],
        "collective_seq_id": number,
        "profiling_name": name,
        "input_sizes": [[2, 3]],
        "retired": done,
    }


def test_the_last_dump_counts_and_half_a_dump_is_none():
    text = f"noise\n{MARK}{json.dumps([entry(1)])}\n{MARK}{json.dumps([entry(1), entry(2, done=False)])}\n"
    assert read_flights(text) == (
        Flight("0", 1, "all_reduce", ((2, 3),), True),
        Flight("0", 2, "all_reduce", ((2, 3),), False),
    )
    for broken in ("", "noise", text[:-30], f"{MARK}[1]", f'{MARK}[{{"retired": true}}]'):
        assert read_flights(broken) is None


def test_ranks_that_wait_nowhere_need_no_lines():
    assert compare_flights({0: (Flight("0", 1, "barrier", (), True),), 1: ()}) == []
    waiting = {0: (Flight("0", 1, "barrier", (), False),), 1: ()}
    assert compare_flights(waiting)[1] == "rank 1 never called collective 1; it has called none"
