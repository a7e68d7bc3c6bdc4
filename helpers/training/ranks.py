"""Ranks for a notebook: a pool of processes that stay, each a member of one process group.

    with Ranks(4) as ranks:
        ranks.run(function)        # [result of rank 0, …, result of rank 3]

The ranks are children of a small server with torch already loaded, never forks of the kernel, so
a rank that aborts or hangs cannot take the kernel with it.
"""

import os
import pickle
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import wait

import cloudpickle

from helpers.hardware.capabilities import usable_cores
from helpers.training.flight import BUFFER_ENTRIES, BUFFER_VARIABLE
from helpers.training.rank_member import Member
from helpers.training.rank_process import Setup
from helpers.training.rank_report import Ending, RanksError, Story, ranks_error
from helpers.training.rank_server import shared_server

__all__ = ["Ranks", "RanksError"]

START_S = 120.0
GRACE_S = 1.0
CLOSE_S = 3.0
STACK_S = 0.3


class Ranks:
    """`count` processes in one process group on this machine: gloo on the CPU, NCCL on GPUs.

    device: `cpu`, or `cuda` for one GPU a rank (set before anything else runs on the rank).
    Each CPU rank computes with its share of the cores, at least one thread.

    Functions travel by cloudpickle, so they may be written in a notebook cell. What a function
    must remember between two calls goes into `state`: a function with a parameter of that name
    gets the rank's own dict, which lives as long as the pool.

    Raises `RanksError` when the ranks cannot start, and from `run` when a rank fails; the pool
    is closed then. No rank outlives the pool, nor the process that made it.
    """

    def __init__(self, count: int, device: str = "cpu"):
        _require_possible(count, device)
        self.count, self.device = count, device
        self.outputs: tuple[str, ...] = ("",) * count
        self._members: list[Member] = []
        self._lifeline, far_end = socket.socketpair()
        try:
            with far_end:
                server = shared_server()
                for rank in range(count):
                    self._members.append(Member(rank, server, far_end))
            self._join()
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, kind, *_) -> None:
        self._end() if kind else self.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the ranks; empty when the pool is closed."""
        return tuple(member.pid for member in self._members)

    def run(self, function: Callable, *arguments, deadline_s: float = 120.0) -> list:
        """Call `function(*arguments)` on every rank; returns the results in rank order.

        What the ranks print appears here when all have answered, rank after rank, each line with
        its rank; `outputs` keeps it as text. Raises `RanksError` when a rank raises, dies, or has
        not answered after `deadline_s` seconds. An interrupt ends the ranks too.
        """
        if not self._members:
            raise RanksError("this pool of ranks is closed", mend=f"start a new one: Ranks({self.count})")
        call = _pickled(function, arguments)
        try:
            stories = self._exchange([call] * self.count, deadline_s)
            self._print_outputs()
            _require_returned(stories, deadline_s)
        except BaseException:
            self._end()
            raise
        return [story.value for story in stories]

    def close(self) -> None:
        """Let the ranks leave their process group and end; harmless when already closed."""
        limit = time.monotonic() + CLOSE_S
        for member in self._members:
            member.send(b"")
        for member in self._members:
            member.left_by(limit)
        self._end()

    def _join(self) -> None:
        """Tell each rank who it is; rank 0 opens the port on which they meet."""
        for member in self._members:
            member.send(pickle.dumps(self._setup(member.rank)))
        opened = _listen(self._members[:1], START_S)
        _require_returned(opened, START_S)
        port = pickle.dumps(opened[0].value)
        _require_returned(self._exchange([port] * self.count, START_S), START_S)

    def _setup(self, rank: int) -> Setup:
        sizes = {"WORLD_SIZE": self.count, "LOCAL_WORLD_SIZE": self.count, "RANK": rank, "LOCAL_RANK": rank}
        environment = dict(os.environ) | {name: str(value) for name, value in sizes.items()}
        environment.setdefault(BUFFER_VARIABLE, BUFFER_ENTRIES)
        if self.device == "cpu":
            environment["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
        return Setup(
            rank=rank,
            world=self.count,
            device=self.device,
            threads=max(1, usable_cores() // self.count),
            path=tuple(sys.path),
            folder=os.getcwd(),
            environment=environment,
        )

    def _exchange(self, messages: list[bytes], deadline_s: float) -> list[Story]:
        for member, message in zip(self._members, messages):
            member.send(message)
        return _listen(self._members, deadline_s)

    def _print_outputs(self) -> None:
        self.outputs = tuple(member.new_output() for member in self._members)
        for rank, text in enumerate(self.outputs):
            for line in text.splitlines():
                print(f"[rank {rank}] {line}")

    def _end(self) -> None:
        members, self._members = self._members, []
        for member in members:
            member.end()
        self._lifeline.close()


def _require_possible(count: int, device: str) -> None:
    if not isinstance(count, int) or count < 1:
        raise RanksError(f"{count!r} is not a number of ranks", mend="ask for one rank or more")
    if device not in ("cpu", "cuda"):
        raise RanksError(f"ranks cannot compute on {device!r}", mend="use device='cpu' or device='cuda'")
    if device == "cuda":
        import torch

        found = torch.cuda.device_count()
        if found < count:
            raise RanksError(
                f"{count} CUDA ranks need {count} GPUs, and this machine has {found}",
                mend=f"use Ranks({count}) for gloo ranks on the CPU",
            )


def _pickled(function: Callable, arguments: tuple) -> bytes:
    try:
        return cloudpickle.dumps((function, arguments))
    except Exception as error:
        name = getattr(function, "__name__", repr(function))
        raise RanksError(
            f"{name} and its arguments cannot be sent to the ranks: {error}",
            mend="pass plain data, and open files and devices inside the function",
        ) from None


def _require_returned(stories: list[Story], deadline_s: float) -> None:
    if any(story.ending is not Ending.RETURNED for story in stories):
        raise ranks_error(stories, deadline_s)


def _listen(members: list[Member], deadline_s: float) -> list[Story]:
    """One story a member. After a first failure the others have `GRACE_S` to tell theirs."""
    stories: dict[int, Story] = {}
    waiting = {member.connection: member for member in members}
    limit = time.monotonic() + deadline_s
    while waiting and (ready := wait(list(waiting), max(0.0, limit - time.monotonic()))):
        for connection in ready:
            story = waiting.pop(connection).receive()
            stories[story.rank] = story
            if story.ending is not Ending.RETURNED:
                limit = min(limit, time.monotonic() + GRACE_S)
    if waiting:
        stories |= _where(members, set(waiting.values()), stories)
    return [stories[member.rank] for member in members]


def _where(members: list[Member], waiting: set[Member], stories: dict[int, Story]) -> dict[int, Story]:
    """Where the waiting ranks are, and which collectives every living rank has called."""
    living = [m for m in members if m in waiting or stories[m.rank].ending is not Ending.DIED]
    for member in living:
        member.ask()
    time.sleep(STACK_S)
    return {
        member.rank: member.waiting() if member in waiting else replace(stories[member.rank], flight=member.flight())
        for member in living
    }
