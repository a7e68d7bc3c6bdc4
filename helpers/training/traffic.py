"""Bytes on the wire: what a collective costs by formula, and what the loopback device really carried."""

from collections.abc import Callable, Iterable
from pathlib import Path

import psutil
import torch.distributed as dist

from helpers.errors import CourseError
from helpers.training.collectives import Collective

BACKENDS = ("nccl", "gloo")


class TrafficError(CourseError):
    """A backend without a formula, or a machine without loopback counters."""


def sent_bytes(collective: Collective, backend: str) -> float:
    """Bytes that one rank sends for `collective` by the ring algorithms.

    Of a tensor of S bytes on W ranks an all-gather and a reduce-scatter send (W − 1)/W · S, and an
    all-reduce, being both in a row, twice that. gloo has no reduce-scatter of its own and runs an
    all-reduce, twice the bytes. Sources: Patarasuk & Yuan 2009, "Bandwidth optimal all-reduce
    algorithms", section 3; gloo's share was measured (`tests/training/test_traffic.py`).
    Raises `TrafficError` for another backend.
    """
    if backend not in BACKENDS:
        raise TrafficError(f"there is no formula for {backend!r}", mend=f"use one of {', '.join(BACKENDS)}")
    doubled = collective.kind == "all_reduce" or (collective.kind == "reduce_scatter" and backend == "gloo")
    share = (collective.ranks - 1) / collective.ranks
    return (2 if doubled else 1) * share * collective.bytes


def sent_by_all(collectives: Iterable[Collective], backend: str, ranks: int) -> float:
    """Bytes that `ranks` ranks send together when each takes part in the same collectives."""
    return ranks * sum(sent_bytes(collective, backend) for collective in collectives)


def loopback_bytes() -> int:
    """Bytes that this machine has sent to itself since it started.

    Raises `TrafficError` where the system does not count them.
    """
    counters = psutil.net_io_counters(pernic=True)
    for name in ("lo", "lo0"):
        if name in counters:
            return counters[name].bytes_sent
    raise TrafficError("no loopback device is counted here", mend="use the formulas, or run on Linux or macOS")


def counts_loopback() -> bool:
    """Whether `loopback_bytes` works here."""
    return Path("/proc/net/dev").is_file() or bool({"lo", "lo0"} & set(psutil.net_io_counters(pernic=True)))


def measure_loopback(work: Callable[[], object]) -> int:
    """Bytes that went over the loopback device while all ranks ran `work()`. Every rank must call it.

    The ranks wait for each other before and after, with a few hundred bytes of their own; whatever
    else uses the loopback device at that time is counted too.
    """
    dist.barrier()
    before = loopback_bytes()
    dist.barrier()
    work()
    dist.barrier()
    return loopback_bytes() - before
