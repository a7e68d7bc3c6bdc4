"""A network of ranks inside one process: it counts every byte and message, and sees a deadlock at once.

    traffic = run_ranks(function, inputs)     # function(input, rank, world, send, receive) on every rank

Each rank is a daemon thread, and one of them runs at a time: until it waits for a message or ends.
A receive names its source, so the outcome does not depend on who runs first (Kahn 1974, "The semantics
of a simple language for parallel programming"), and a run can be repeated exactly.
"""

import ctypes
import operator
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from helpers.errors import CourseError

if TYPE_CHECKING:
    from torch import Tensor

LIMIT_S = 3.0
MOST_MESSAGES = 2_000
MOST_BYTES = 2**28
JOIN_S = 0.2


class NetworkError(CourseError):
    """A run on the network that did not end well."""


class DeadlockError(NetworkError):
    """Every rank that has not ended waits, and no message is on its way to it."""


class EndlessError(NetworkError):
    """A rank that computes or sends without end."""


class MisuseError(NetworkError):
    """A message to or from a rank that is none, or something other than a tensor."""


@dataclass(frozen=True)
class Message:
    """One message: from rank `source` to rank `to`, `bytes` long; it leaves at `tick` and takes one tick.

    tensor: what it carried, a copy that nobody else holds.
    """

    source: int
    to: int
    bytes: int
    tick: int
    tensor: "Tensor" = field(repr=False, compare=False)


@dataclass(frozen=True)
class Traffic:
    """What ran over the network.

    results: what each rank returned. messages: all that were sent, rank after rank as they ran.
    undelivered: those that nobody received. ticks: when the last one arrived, if a rank can send one
    message and receive one in the same tick.
    """

    world: int
    results: tuple
    messages: tuple[Message, ...]
    undelivered: tuple[Message, ...]
    ticks: int

    def sent(self, rank: int) -> int:
        """Bytes that a rank sent."""
        return sum(each.bytes for each in self.messages if each.source == rank)

    def received(self, rank: int) -> int:
        """Bytes that a rank received."""
        arrived = sum(each.bytes for each in self.messages if each.to == rank)
        return arrived - sum(each.bytes for each in self.undelivered if each.to == rank)

    def partners(self, rank: int) -> set[int]:
        """The ranks to which a rank sent."""
        return {each.to for each in self.messages if each.source == rank}

    def links(self) -> dict[tuple[int, int], int]:
        """Bytes by (source, to), for each pair that talked."""
        found: Counter[tuple[int, int]] = Counter()
        for each in self.messages:
            found[each.source, each.to] += each.bytes
        return dict(found)

    def busiest_rank(self) -> int:
        """Bytes that the rank which sends most sent."""
        return max(map(self.sent, range(self.world)))

    def busiest_wire(self) -> int:
        """Bytes over the fullest wire, if the ranks are wired as a ring and messages go the shorter way.

        Neighbours share two wires, one for each direction. A message to a rank d places away crosses d
        wires; half-way round it goes upwards.
        """
        wires: Counter[tuple[int, int]] = Counter()
        for (source, to), size in self.links().items():
            up = (to - source) % self.world
            way, hops = (1, up) if 2 * up <= self.world else (-1, self.world - up)
            wires.update({((source + way * hop) % self.world, way): size for hop in range(hops)})
        return max(wires.values(), default=0)


def run_ranks(function: Callable, inputs: Sequence, *, buffered: bool = True, limit_s: float = LIMIT_S) -> Traffic:
    """Call `function(input, rank, world, send, receive)` on a rank for each of `inputs`.

    `send(tensor, to)` hands over a copy and goes on; with buffered=False it waits until the other rank
    has received it. `receive(source)` waits for the oldest message of that rank and returns its tensor,
    which belongs to the receiver.

    Raises `DeadlockError` when no rank can go on, `EndlessError` after `limit_s` seconds, more than
    `MOST_MESSAGES` messages or `MOST_BYTES` bytes, `MisuseError` for a rank that is none. The first
    exception of a rank stops all of them, and goes through.
    """
    network = _Network(function, inputs, buffered)
    try:
        network.run(limit_s)
    finally:
        network.stop()
    undelivered = tuple(each for box in network.mail.values() for each in box)
    ticks = max(member.last_arrival for member in network.members) if inputs else 0
    results = tuple(member.result for member in network.members)
    return Traffic(len(inputs), results, tuple(network.messages), undelivered, ticks)


class _Stopped(SystemExit):
    """Ends the thread of a rank whose network has been stopped; Python lets a thread end so in silence."""


class _Network:
    """The ranks, their mailboxes, and whose turn it is."""

    def __init__(self, function: Callable, inputs: Sequence, buffered: bool):
        self.world, self.buffered = len(inputs), buffered
        self.mail: dict[tuple[int, int], deque[Message]] = defaultdict(deque)
        self.messages: list[Message] = []
        self.bytes = 0
        self.turn_over = threading.Semaphore(0)
        self.stopped = False
        self.members = [_Member(self, rank, function, each) for rank, each in enumerate(inputs)]

    def run(self, limit_s: float) -> None:
        """Give turns until every rank has ended."""
        end = time.monotonic() + limit_s
        while living := [member for member in self.members if not member.ended]:
            ready = [member for member in living if member.may_go_on()]
            if not ready:
                raise _deadlock(living)
            for member in ready:
                member.turn.release()
                if not self.turn_over.acquire(timeout=max(0.0, end - time.monotonic())):
                    raise EndlessError(
                        f"after {limit_s:g} s rank {member.rank} still computes",
                        mend="look for a loop that does not end",
                    )
                if member.error is not None:
                    raise member.error

    def stop(self) -> None:
        """End the threads that still live; one that does not listen is a daemon and blocks no exit."""
        self.stopped = True
        for member in self.members:
            member.turn.release()
        for member in self.members:
            member.end()


class _Member:
    """One rank: its thread, what it waits for, and its clock."""

    def __init__(self, network: _Network, rank: int, function: Callable, own: object):
        self.network, self.rank = network, rank
        self.turn = threading.Semaphore(0)
        self.may_go_on: Callable[[], bool] = lambda: True
        self.waits_for, self.ended, self.told = "", False, False
        self.result: object = None
        self.error: BaseException | None = None
        self.now = self.next_departure = self.last_arrival = 0
        call = lambda: function(own, rank, network.world, self.send, self.receive)
        self.thread = threading.Thread(target=self._live, args=(call,), daemon=True, name=f"rank {rank}")
        self.thread.start()

    def _live(self, call: Callable[[], object]) -> None:
        try:
            self.turn.acquire()
            if not self.network.stopped:
                self.result = call()
        except _Stopped:
            pass
        except BaseException as error:
            self.error = error
        finally:
            self.ended = True
            self.network.turn_over.release()

    def end(self) -> None:
        """Let the thread end, if need be by an exception in the middle of its loop."""
        self.thread.join(0 if self.ended else JOIN_S / 4)
        if self.thread.is_alive() and not self.ended:
            identity = ctypes.c_ulong(self.thread.ident)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(identity, ctypes.py_object(_Stopped))
            self.thread.join(JOIN_S)

    def _wait(self, until: Callable[[], bool], what: str) -> None:
        """Give the turn away until `until()` holds."""
        self.may_go_on, self.waits_for = until, what
        self.network.turn_over.release()
        self.turn.acquire()
        self._require_running()

    def _require_running(self) -> None:
        if self.network.stopped:
            if self.told:  # an answer that catches everything and tries again sleeps, until the process ends
                threading.Event().wait()
            self.told = True
            raise _Stopped

    def send(self, tensor: "Tensor", to: int) -> None:
        """Hand a copy of `tensor` to rank `to`."""
        self._require_running()
        network, to = self.network, self._other(to, "send to")
        message = self._message(tensor, to)
        box = network.mail[self.rank, to]
        box.append(message)
        network.messages.append(message)
        network.bytes += message.bytes
        if len(network.messages) > MOST_MESSAGES or network.bytes > MOST_BYTES:
            saw = f"{len(network.messages)} messages of together {network.bytes} bytes were sent"
            raise EndlessError(saw, where=f"rank {self.rank}", mend="look for a loop that does not end")
        if not network.buffered:
            received = lambda: all(each is not message for each in box)
            self._wait(received, f"rank {self.rank} waits until rank {to} receives")

    def _message(self, tensor: "Tensor", to: int) -> Message:
        """A copy of `tensor` that leaves when this rank has sent what came before."""
        import torch

        if not isinstance(tensor, torch.Tensor):
            kind = type(tensor).__name__
            raise MisuseError(f"rank {self.rank} sent a {kind}", mend="send(tensor, to) takes the tensor first")
        leaves = max(self.now, self.next_departure)
        self.next_departure = leaves + 1
        return Message(self.rank, to, tensor.numel() * tensor.element_size(), leaves, tensor.detach().clone())

    def receive(self, source: int) -> "Tensor":
        """The oldest message of rank `source`, when there is one."""
        self._require_running()
        source = self._other(source, "receive from")
        box = self.network.mail[source, self.rank]
        if not box:
            self._wait(lambda: bool(box), f"rank {self.rank} waits for a message of rank {source}")
        message = box.popleft()
        self.last_arrival = max(message.tick, self.last_arrival) + 1
        self.now = max(self.now, self.last_arrival)
        return message.tensor.clone()

    def _other(self, rank: int, what: str) -> int:
        """`rank` as a number, if it is another rank of this network."""
        world = self.network.world
        try:
            number = operator.index(rank)
        except TypeError:
            raise MisuseError(
                f"rank {self.rank} wanted to {what} a {type(rank).__name__}", mend="name a rank by its number"
            ) from None
        if number == self.rank or not 0 <= number < world:
            who = "itself" if number == self.rank else f"rank {number}"
            raise MisuseError(
                f"rank {self.rank} of {world} wanted to {what} {who}",
                mend=f"the others are among 0 to {world - 1}: a ring closes behind the last one",
            )
        return number


def _deadlock(living: Sequence[_Member]) -> DeadlockError:
    """Who waits for what."""
    ended = "" if len(living) == living[0].network.world else "; the others have ended"
    return DeadlockError(
        "; ".join(member.waits_for for member in living) + ended,
        mend="every receive needs a send, and someone must send before receiving",
    )
