"""The flight recorder: which collectives a rank called, read from outside while it hangs.

torch keeps the last collectives of each process in a ring. A thread of the rank writes them out on
SIGUSR2, also while the rank's own thread waits in one of them; the pool's report compares the ranks.
"""

import json
import os
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass

BUFFER_VARIABLE, BUFFER_ENTRIES = "TORCH_FR_BUFFER_SIZE", "256"
MARK, LAST = "course-flight ", 32


@dataclass(frozen=True)
class Flight:
    """One collective of one rank.

    group: its process group. number: its place among the group's collectives, from 1. name: as
    `all_reduce`. shapes: of the inputs. done: whether it returned.
    """

    group: str
    number: int
    name: str
    shapes: tuple[tuple[int, ...], ...]
    done: bool

    def __str__(self) -> str:
        shapes = ", ".join(str(list(shape)) for shape in self.shapes)
        return f"{self.name} of {shapes}" if shapes else self.name


def listen_for_dumps() -> None:
    """Start the thread that writes the recorder to stderr on SIGUSR2; call it before other threads start.

    Every thread blocks SIGUSR2, so that only this one takes it; this one blocks all else.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    threading.Thread(target=_dump_on_signal, daemon=True).start()


def _dump_on_signal() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    while True:
        signal.sigwait({signal.SIGUSR2})
        os.write(2, f"\n{MARK}{json.dumps(_recorded())}\n".encode())


def _recorded() -> list[dict]:
    import torch

    dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json", None)
    entries = json.loads(dump(True, False)).get("entries", []) if dump else []
    kept = ("process_group", "collective_seq_id", "profiling_name", "input_sizes", "retired")
    return [{name: entry.get(name) for name in kept} for entry in entries[-LAST:]]


def read_flights(text: str) -> tuple[Flight, ...] | None:
    """The collectives in what a rank wrote to stderr, oldest first; None when it wrote no dump, or half of one."""
    dumps = [line for line in text.splitlines() if line.startswith(MARK)]
    try:
        return tuple(_flight(entry) for entry in json.loads(dumps[-1].removeprefix(MARK))) if dumps else None
    except (ValueError, KeyError, TypeError):
        return None


def _flight(entry: dict) -> Flight:
    return Flight(
        group=str(entry["process_group"][0]),
        number=int(entry["collective_seq_id"]),
        name=str(entry["profiling_name"]).rpartition(":")[2],
        shapes=tuple(tuple(size) for size in entry["input_sizes"] or ()),
        done=bool(entry["retired"]),
    )


def compare_flights(flights: Mapping[int, tuple[Flight, ...]]) -> list[str]:
    """Lines that say where the ranks' collectives part: who waits in which, and who called what instead.

    flights: by rank. The first collective that some rank has not finished is the one that matters.
    """
    waiting = [entry for entries in flights.values() for entry in entries if not entry.done]
    if not waiting:
        return []
    first = min(waiting, key=lambda entry: entry.number)
    lines = []
    for rank, entries in sorted(flights.items()):
        mine = [entry for entry in entries if entry.group == first.group]
        here = next((entry for entry in mine if entry.number == first.number), None)
        if here:
            lines.append(f"rank {rank} {'finished' if here.done else 'waits in'} collective {here.number}: {here}")
        else:
            last = f"its last was {mine[-1].number}: {mine[-1]}" if mine else "it has called none"
            lines.append(f"rank {rank} never called collective {first.number}; {last}")
    return lines
