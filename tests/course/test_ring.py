"""The in-process network counts right and ends whatever happens; the ring's oracles agree with real ranks."""

import subprocess
import sys
import threading
from collections import Counter

import pytest
import torch
import torch.distributed as dist

from helpers.course.checks import State, find_exercise, judge
from helpers.course.exercise import Symptom
from helpers.course.exercises.training import ring_network
from helpers.course.exercises.training.ring import examine_gather, gathered, reduced
from helpers.course.exercises.training.ring_figures import gather_panels, panels_figure, reduce_panels, shares_figure
from helpers.course.exercises.training.ring_network import (
    DeadlockError,
    EndlessError,
    MisuseError,
    run_ranks,
)
from helpers.training.collectives import Collective
from helpers.training.ranks import Ranks
from helpers.training.traffic import sent_bytes

FOREVER_S = 3600.0


def all_gather(shard, rank, world, send, receive):
    chunks = {rank: shard}
    for step in range(world - 1):
        send(chunks[(rank - step) % world], (rank + 1) % world)
        chunks[(rank - step - 1) % world] = receive((rank - 1) % world)
    return torch.cat([chunks[number] for number in range(world)])


def reduce_scatter(full, rank, world, send, receive):
    chunks = full.chunk(world)
    part = chunks[(rank - 1) % world].clone()
    for step in range(world - 1):
        send(part, (rank + 1) % world)
        part = receive((rank - 1) % world) + chunks[(rank - step - 2) % world]
    return part


def swap(mine, rank, world, send, receive):
    send(mine, 1 - rank)
    return receive(1 - rank)


def living_ranks():
    return [thread for thread in threading.enumerate() if thread.name.startswith("rank ")]


@pytest.fixture(autouse=True)
def no_rank_stays():
    before = set(living_ranks())
    yield
    for thread in set(living_ranks()) - before:
        thread.join(2)
        assert not thread.is_alive(), thread


# What is counted


def scattered(seed):
    """Every rank sends to random others, as the same seed tells their receivers."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 4, (5, 5), generator=generator).fill_diagonal_(0).tolist()

    def exchange(own, rank, world, send, receive):
        for to, length in enumerate(lengths[rank]):
            for size in range(length):
                send(own[: size + 1], to)
        return sum(len(receive(source)) for source in range(world) for _ in range(lengths[source][rank]))

    return exchange, lengths


@pytest.mark.parametrize("seed", range(4))
def test_bytes_are_conserved(seed):
    exchange, lengths = scattered(seed)
    traffic = run_ranks(exchange, [torch.zeros(3)] * 5)
    by_hand = Counter()
    for source, row in enumerate(lengths):
        for to, length in enumerate(row):
            by_hand[source, to] = 4 * sum(range(1, length + 1))
    assert traffic.links() == {link: size for link, size in by_hand.items() if size}
    assert sum(map(traffic.sent, range(5))) == sum(map(traffic.received, range(5))) == sum(by_hand.values())
    assert [traffic.received(rank) for rank in range(5)] == [4 * got for got in traffic.results]
    assert traffic.undelivered == ()


def test_what_nobody_receives_is_sent_and_not_received():
    def talk(own, rank, world, send, receive):
        if rank == 0:
            send(own, 1)

    traffic = run_ranks(talk, [torch.zeros(3)] * 2)
    assert (traffic.sent(0), traffic.received(1), len(traffic.undelivered)) == (12, 0, 1)


@pytest.mark.parametrize("world", [1, 2, 4, 7])
@pytest.mark.parametrize(("collective", "kind"), [(all_gather, "all_gather"), (reduce_scatter, "reduce_scatter")])
def test_a_ring_sends_what_the_formula_says(world, collective, kind):
    size = world * 3 * 4
    inputs = [torch.zeros(3 if kind == "all_gather" else 3 * world)] * world
    traffic = run_ranks(collective, inputs)
    assert {traffic.sent(rank) for rank in range(world)} == {sent_bytes(Collective(kind, world, 1, size), "nccl")}
    assert traffic.ticks == world - 1
    assert traffic.busiest_wire() == traffic.busiest_rank()


def test_a_message_takes_a_tick_and_a_rank_receives_one_at_a_time():
    def to_zero(own, rank, world, send, receive):
        if rank:
            send(own, 0)
        else:
            for source in range(1, world):
                receive(source)

    assert run_ranks(to_zero, [torch.zeros(1)] * 5).ticks == 4


def test_messages_on_a_ring_of_wires_go_the_shorter_way():
    def to_two(own, rank, world, send, receive):
        return send(own, 2) if rank == 0 else receive(0) if rank == 2 else None

    def both_neighbours(own, rank, world, send, receive):
        send(own, (rank + 1) % world)
        send(own, (rank - 1) % world)
        return receive((rank + 1) % world), receive((rank - 1) % world)

    assert run_ranks(to_two, [torch.zeros(2)] * 5).busiest_wire() == 8
    assert run_ranks(both_neighbours, [torch.zeros(2)] * 5).busiest_wire() == 8


def test_a_message_is_a_copy_on_both_sides():
    def careless(own, rank, world, send, receive):
        if rank == 0:
            send(own, 1)
            own.zero_()
            return own
        got = receive(0)
        got += 1
        return got

    traffic = run_ranks(careless, [torch.ones(2), torch.ones(2)])
    assert traffic.results[1].tolist() == [2, 2] and traffic.messages[0].tensor.tolist() == [1, 1]


def test_a_run_can_be_repeated():
    exchange, _ = scattered(9)
    first, second = (run_ranks(exchange, [torch.zeros(3)] * 5) for _ in range(2))
    assert first.messages == second.messages


# How a run ends


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda own, rank, world, send, receive: receive((rank + 1) % world), "rank 2 waits for a message of rank 0"),
        (lambda own, rank, world, send, receive: rank or receive(2), "rank 0 waits for a message of rank 2; the oth"),
        (lambda own, rank, world, send, receive: rank == 1 and receive(0), "rank 1 waits for a message of rank 0"),
    ],
    ids=["in a circle", "from a rank that ended", "from a rank that never sends"],
)
def test_a_deadlock_is_seen_without_waiting(function, words):
    with pytest.raises(DeadlockError, match=words):
        run_ranks(function, [torch.zeros(1)] * 3, limit_s=FOREVER_S)


def test_what_only_looks_like_a_deadlock_goes_on():
    def chain(own, rank, world, send, receive):
        got = receive(rank + 1) if rank < world - 1 else own
        if rank:
            send(got + 1, rank - 1)
        return got

    assert run_ranks(chain, [torch.zeros(1)] * 6, limit_s=FOREVER_S).results[0].item() == 5


def test_without_a_buffer_a_swap_deadlocks_and_taking_turns_does_not():
    def in_turns(mine, rank, world, send, receive):
        got = receive(0) if rank else None
        send(mine, 1 - rank)
        return got if rank else receive(1)

    inputs = [torch.zeros(1), torch.ones(1)]
    assert [got.item() for got in run_ranks(swap, inputs).results] == [1, 0]
    with pytest.raises(DeadlockError, match="rank 0 waits until rank 1 receives; rank 1 waits until rank 0 receives"):
        run_ranks(swap, inputs, buffered=False, limit_s=FOREVER_S)
    assert [got.item() for got in run_ranks(in_turns, inputs, buffered=False).results] == [1, 0]


def test_a_loop_without_end_is_ended():
    def spin(own, rank, world, send, receive):
        while rank == 1:
            pass

    with pytest.raises(EndlessError, match="rank 1 still computes"):
        run_ranks(spin, [torch.zeros(1)] * 3, limit_s=0.2)


def test_messages_and_bytes_without_end_are_ended(monkeypatch):
    def chatter(own, rank, world, send, receive):
        while True:
            send(own, 1 - rank)

    with pytest.raises(EndlessError, match=f"{ring_network.MOST_MESSAGES + 1} messages"):
        run_ranks(chatter, [torch.zeros(1)] * 2, limit_s=FOREVER_S)
    monkeypatch.setattr(ring_network, "MOST_BYTES", 2**12)
    with pytest.raises(EndlessError, match="5 messages of together 5000 bytes"):
        run_ranks(chatter, [torch.zeros(250)] * 2, limit_s=FOREVER_S)


def test_an_exception_stops_all_and_goes_through():
    def fails(own, rank, world, send, receive):
        if rank == 2:
            raise KeyError("mine")
        receive(2)

    with pytest.raises(KeyError, match="mine") as caught:
        run_ranks(fails, [torch.zeros(1)] * 4)
    assert "fails" in [frame.name for frame in caught.traceback]
    assert living_ranks() == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((torch.zeros(1), 3), "rank 0 of 3 wanted to send to rank 3"),
        ((torch.zeros(1), -1), "rank -1"),
        ((torch.zeros(1), 0), "itself"),
        ((1, torch.zeros(2)), "send to a Tensor"),
        (([1.0], 1), "sent a list"),
    ],
)
def test_misuse_says_what_was_meant(arguments, words):
    with pytest.raises(MisuseError, match=words):
        run_ranks(lambda own, rank, world, send, receive: send(*arguments), [torch.zeros(1)] * 3)


def test_nothing_blocks_the_end_of_the_interpreter():
    program = (
        "import time, torch\n"
        "from helpers.course.exercises.training.ring_network import *\n"
        "def deaf(own, rank, world, send, receive):\n"
        "    while rank == 0:\n"
        "        try: time.sleep(3600)\n"
        "        except BaseException: pass\n"
        "    while True:\n"
        "        try: receive(0)\n"
        "        except BaseException: pass\n"
        "try: run_ranks(deaf, [torch.zeros(1)] * 2, limit_s=0.2)\n"
        "except EndlessError: print('ended')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr, done.returncode) == ("ended\n", "", 0)


# The exercises


def test_the_oracles_agree_with_real_ranks():
    def by_gloo(shards, fulls):
        rank, world = dist.get_rank(), dist.get_world_size()
        whole, part = torch.empty(world * len(shards[0]), 2), torch.empty(len(fulls[0]) // world, 2)
        dist.all_gather_into_tensor(whole, shards[rank])
        dist.reduce_scatter_tensor(part, fulls[rank])
        return whole, part

    generator = torch.Generator().manual_seed(3)
    shards = list(torch.randint(-50, 50, (3, 4, 2), generator=generator).float())
    fulls = list(torch.randint(-50, 50, (3, 6, 2), generator=generator).float())
    with Ranks(3) as ranks:
        real = ranks.run(by_gloo, shards, fulls)
    for (whole, part), chunk in zip(real, reduced(fulls)):
        assert whole.equal(gathered(shards)) and part.double().equal(chunk)


@pytest.mark.parametrize(("identifier", "answer"), [("training.3", all_gather), ("training.4", reduce_scatter)])
def test_a_ring_the_other_way_round_passes_too(identifier, answer):
    def mirrored(own, rank, world, send, receive):
        """Rank r plays rank −r, so that what went up goes down; chunks are mirrored before and after."""
        flip = lambda tensor: torch.cat(tensor.chunk(world)[:1] + tensor.chunk(world)[:0:-1])
        own = own if answer is all_gather else flip(own)
        got = answer(
            own, -rank % world, world, lambda t, to: send(t, -to % world), lambda source: receive(-source % world)
        )
        return flip(got) if answer is all_gather else got

    verdict = judge(find_exercise(identifier), mirrored, 0)
    assert verdict.state is State.PASS, str(verdict)


@pytest.mark.parametrize("identifier", ["training.3", "training.4"])
def test_an_untouched_answer_is_not_started(identifier):
    def untouched(own, rank, world, send, receive):
        raise NotImplementedError(identifier)

    assert judge(find_exercise(identifier), untouched, 0).state is State.NOT_STARTED


def test_a_finding_names_the_smallest_input_and_a_hint_that_exists():
    finding = examine_gather(lambda shard, rank, world, send, receive: shard, 0)
    assert (finding.symptom, finding.hint) == (Symptom.SHAPE, 1)
    assert finding.saw == "3 ranks, chunks of shape (1,): rank 0 returned shape (1,)"


# Pictures


def test_panels_fill_step_by_step():
    held = [sum(bool(text) for row in panel for text in row) for panel in gather_panels(all_gather, 4)]
    assert held == [4, 8, 12, 16]
    panels = reduce_panels(reduce_scatter, 4)
    assert [{text.count("+") for row in panel for text in row if text} for panel in panels] == [{0}, {1}, {2}, {3}]
    assert [panels[-1][rank][rank] for rank in range(4)] == ["0+1+2+3"] * 4


def test_figures_are_drawn():
    from matplotlib import pyplot

    figure = panels_figure(gather_panels(all_gather, 3))
    assert [axes.get_title() for axes in figure.axes] == ["before", "after step 1", "after step 2"]
    bars = shares_figure((2, 4), {"sent": {"root": [1, 3], "ring": [0.5, 0.75]}}).axes[0].patches
    assert sorted(bar.get_height() for bar in bars) == [0.5, 0.75, 1, 3]
    pyplot.close("all")
