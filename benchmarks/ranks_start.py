"""From the call to the end of the first collective on four ranks: `Ranks` beside other ways to start them.

python benchmarks/ranks_start.py [--rounds 5]

Each start is measured in a process of its own that has torch loaded, as a notebook has. The clock stops
when the last rank has its first all-reduce behind it, so shutting down costs nothing here.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

RANKS = 4
SIZE = 512
DEADLINE_S = 40
WARM = "Ranks, warm"


def first(folder: str | None = None) -> float:
    """On a rank: all-reduce one product, and say when it was done on the clock that all processes share."""
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    product = torch.ones(SIZE, SIZE) @ torch.ones(SIZE, SIZE)
    dist.all_reduce(product)
    end = time.monotonic()
    if not (product == RANKS * SIZE).all():
        raise RuntimeError(f"the sum over {RANKS} ranks is {product[0, 0].item() / SIZE}")
    if folder:
        Path(folder, f"rank-{dist.get_rank()}").write_text(str(end))
    return end


def last_of(folder: str) -> float:
    """When the slowest rank was done."""
    ends = [float(file.read_text()) for file in Path(folder).glob("rank-*")]
    if len(ends) != RANKS:
        raise RuntimeError(f"{len(ends)} of {RANKS} ranks answered")
    return max(ends)


def ranks_cold(folder: str) -> float:
    """`Ranks` with nothing running yet: its server loads torch within the measured time."""
    from helpers.training.ranks import Ranks

    start = time.monotonic()
    with Ranks(RANKS) as ranks:
        return max(ranks.run(first)) - start


def ranks_warm(folder: str) -> float:
    """`Ranks` in a process that had a pool before: the server is there."""
    from helpers.training.ranks import Ranks

    Ranks(1).close()
    return ranks_cold(folder)


def torchrun(folder: str) -> float:
    """`torchrun` on this file."""
    meet = ["--standalone", "--local-addr=127.0.0.1", f"--nproc_per_node={RANKS}"]
    start = time.monotonic()
    command = [sys.executable, "-m", "torch.distributed.run", *meet, __file__, "--rank", folder]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return last_of(folder) - start


def mp_spawn(folder: str) -> float:
    """`torch.multiprocessing.spawn` of a function in this file."""
    import torch.multiprocessing as mp

    start = time.monotonic()
    mp.spawn(_spawned, args=(_free_port(), folder), nprocs=RANKS)
    return last_of(folder) - start


def _spawned(rank: int, port: int, folder: str) -> None:
    os.environ |= _environment(rank, port)
    first(folder)


def _environment(rank: int, port: int) -> dict[str, str]:
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    return meet | {"RANK": str(rank), "WORLD_SIZE": str(RANKS)}


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ipyparallel(folder: str) -> float:
    """A cluster of ipyparallel engines, and one call on all."""
    import ipyparallel

    start = time.monotonic()
    with ipyparallel.Cluster(n=RANKS, log_level=40) as engines:
        port = _free_port()
        calls = [engines[rank].apply_async(_engine, os.getcwd(), rank, port) for rank in range(RANKS)]
        return max(call.get() for call in calls) - start


def _engine(folder: str, rank: int, port: int) -> float:
    import os
    import sys

    sys.path[:0] = [folder, f"{folder}/benchmarks"]
    import ranks_start

    os.environ |= ranks_start._environment(rank, port)
    return ranks_start.first()


def debug_launcher(folder: str) -> float:
    """accelerate's `debug_launcher`, the one that has ranks on a CPU; it forks this process."""
    from accelerate import debug_launcher as launch

    start = time.monotonic()
    launch(_accelerated, args=(folder,), num_processes=RANKS)
    return last_of(folder) - start


def _accelerated(folder: str) -> None:
    from accelerate import PartialState

    PartialState(cpu=True)
    first(folder)


def debug_launcher_later(folder: str) -> float:
    """The same in a process that has computed something, as a notebook has by its second cell."""
    import torch

    weight = torch.randn(SIZE, SIZE, requires_grad=True)
    (weight @ weight).sum().backward()
    return debug_launcher(folder)


WAYS = {
    WARM: ranks_warm,
    "Ranks, cold": ranks_cold,
    "torchrun": torchrun,
    "mp.spawn": mp_spawn,
    "ipyparallel": ipyparallel,
    "accelerate debug_launcher": debug_launcher,
    "… after one backward": debug_launcher_later,
}
NEEDS = {
    "ipyparallel": "ipyparallel",
    "accelerate debug_launcher": "accelerate",
    "… after one backward": "accelerate",
}


def measure(way: str) -> float | str:
    """Seconds of one start in a fresh process, or the reason why there is no number."""
    if way in NEEDS and not find_spec(NEEDS[way]):
        return f"not installed (pip install {NEEDS[way]})"
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, __file__, "--way", way]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
        start_new_session=True,
    ) as process:
        try:
            printed, words = process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            return f"no answer within {DEADLINE_S} s: stopped"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        return f"failed: {(words.strip().splitlines() or [process.returncode])[-1]}"
    return json.loads(printed.splitlines()[-1])


def main() -> None:
    """Measure and print; with --way or --rank be one of the measured processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        first(args.rank)
        os._exit(0)  # gloo's threads now and then abort the interpreter's shutdown
    elif args.way:
        import torch.multiprocessing  # noqa: F401

        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(WAYS[args.way](folder)))
    else:
        report(args.rounds)


def report(rounds: int) -> None:
    """Take the ways in turns and print the table; a way that gave no number once is left out from then on."""
    from side_by_side import ratio, spread, stamp

    from helpers.measure import Samples, Table

    print(stamp("ipyparallel", "accelerate"))
    seconds, reasons = {way: [] for way in WAYS}, {}
    for _ in range(rounds):
        for way in [way for way in WAYS if way not in reasons]:
            answer = measure(way)
            if isinstance(answer, str):
                reasons[way] = answer
            else:
                seconds[way].append(answer)
    rows = []
    for way, values in seconds.items():
        samples = Samples(tuple(values))
        numbers = (samples.median, spread(samples), ratio(samples, Samples(tuple(seconds[WARM])))) if values else ()
        rows.append((way, *(numbers or ("—", "—", "—")), len(values)))
    print(f"call to first collective, {RANKS} gloo ranks, {rounds} rounds")
    print(Table(("way", "median", "spread", f"to {WARM}", "starts"), tuple(rows)))
    for way, reason in reasons.items():
        print(f"{way}: {reason}")


if __name__ == "__main__":
    main()
