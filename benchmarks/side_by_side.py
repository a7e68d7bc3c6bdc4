"""What the benchmarks share: calls timed in turns, ratios within each turn, and a stamp of when and on what."""

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from datetime import date
from importlib import metadata

from helpers.hardware.capabilities import usable_cores
from helpers.measure import Quantity, Samples, measured

Step = Callable[[], object]


def stamp(*packages: str) -> str:
    """One line: date, cores, load of the machine, and the versions of Python, torch and `packages`.

    Where others keep a quarter of the cores busy, the line says that the table was taken under load.
    """
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    load += " (taken under load)" if os.getloadavg()[0] > usable_cores() / 4 else ""
    versions = [f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in ("torch", *packages))]
    return f"{date.today()} · {usable_cores()} cores · load average {load} · {', '.join(versions)}"


def version(package: str) -> str:
    """The installed version, or `not installed`."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def in_turns(
    calls: Mapping[str, Step], rounds: int, *, warmup: int = 2, before: Step = lambda: None
) -> dict[str, Samples]:
    """Time each of `calls` once a round, so that what the machine does meanwhile meets all alike.

    The order turns by one place each round. before: runs untimed ahead of every call.
    """
    names, seconds = list(calls), {name: [] for name in calls}
    for index in range(warmup + rounds):
        place = index % len(names)
        for name in names[place:] + names[:place]:
            before()
            start = time.perf_counter()
            calls[name]()
            if index >= warmup:
                seconds[name].append(time.perf_counter() - start)
    return {name: Samples(tuple(values)) for name, values in seconds.items()}


def slowest(ranks: list[dict[str, Samples]]) -> dict[str, Samples]:
    """The samples of the rank that took longest, call by call."""
    return {name: Samples(tuple(map(max, zip(*(rank[name].seconds for rank in ranks))))) for name in ranks[0]}


def together(ranks: list[dict[str, Samples]]) -> dict[str, Samples]:
    """The samples of all ranks added up, call by call."""
    return {name: Samples(tuple(map(sum, zip(*(rank[name].seconds for rank in ranks))))) for name in ranks[0]}


def ratio(samples: Samples, base: Samples) -> Quantity:
    """Median over the rounds of time over the time of `base` in the same round."""
    return measured(statistics.median(a / b for a, b in zip(samples.seconds, base.seconds)), "×")


def spread(samples: Samples) -> Quantity:
    """Interquartile range over median, in percent."""
    return measured(100 * samples.spread, "%")


def quartiles(samples: Samples, base: Samples) -> str:
    """Within what the middle half of the rounds' ratios lies."""
    low, _, high = statistics.quantiles(
        [a / b for a, b in zip(samples.seconds, base.seconds)], n=4, method="inclusive"
    )
    return f"{low:.2f}–{high:.2f}"
