"""How long a checkpoint stalls training: ours, sync and async, beside torch's own ways to save.

python benchmarks/checkpoint.py [--rounds 3]
"""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from side_by_side import ratio, slowest, spread, stamp

from helpers.measure import Samples, Table, measured
from helpers.training.presets import load_preset
from helpers.training.ranks import Ranks

RANKS = 4
PRESET, BATCH, CONTEXT = "small", 4, 128
STEPS = 1
SYNC, ASYNC = "Checkpoints", "Checkpoints, asynchronous"
PLAIN, PLAIN_ASYNC, FULL = "dcp.save", "dcp.async_save", "torch.save of the whole state on rank 0"
WAYS = (SYNC, ASYNC, PLAIN, PLAIN_ASYNC, FULL)
PARTS = ("call", "steps", "rest")


def start(folder: Path, state: dict) -> None:
    """On a rank: a trainer that has taken a step, so that the optimizer has its state; and the ways to save it."""
    from helpers.training.checkpoint import Checkpoints
    from helpers.training.loop import Trainer
    from helpers.training.plan import ShardingPlan

    preset, plan = load_preset(PRESET), ShardingPlan()
    preset = replace(preset, batch=BATCH, model=replace(preset.model, context=CONTEXT))
    state["trainer"] = Trainer(preset, plan.make_mesh("cpu", RANKS), plan)
    state["trainer"].step()
    state["folder"] = folder
    state["ours"] = {SYNC: Checkpoints(folder / "sync", 1), ASYNC: Checkpoints(folder / "async", 1, True)}


def save(way: str, state: dict) -> dict[str, float]:
    """On a rank: seconds of the call, of the steps that follow, and of what is left to wait for after them.

    An asynchronous save is written while the steps run, as far as they last.
    """
    import torch.distributed as dist

    trainer = state["trainer"]
    dist.barrier()
    begin = time.perf_counter()
    finish = _saved(way, trainer, state)
    called = time.perf_counter()
    for _ in range(STEPS):
        trainer.step()
    stepped = time.perf_counter()
    finish()
    return dict(zip(PARTS, (called - begin, stepped - called, time.perf_counter() - stepped)))


def _saved(way: str, trainer, state: dict):
    """Save; returns what waits for the rest of it."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    if way in state["ours"]:
        state["ours"][way].save(trainer)
        return state["ours"][way].finish
    folder = state["folder"] / way.replace(" ", "-")
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True) if way == FULL else None
    model, optimizer = get_state_dict(trainer.model, trainer.optimizer, options=whole)
    content = {"model": model, "optimizer": optimizer}
    if way == FULL:
        if dist.get_rank() == 0:
            torch.save(content, folder)
        dist.barrier()
    elif way == PLAIN_ASYNC:
        return dcp.async_save(content, checkpoint_id=folder, process_group=_gloo(state)).result
    else:
        dcp.save(content, checkpoint_id=folder)
    return lambda: None


def _gloo(state: dict):
    """A group of its own for the thread that writes, as ours has."""
    import torch.distributed as dist

    if "group" not in state:
        state["group"] = dist.new_group(backend="gloo")
    return state["group"]


def alone(state: dict) -> dict[str, float]:
    """On a rank: seconds of the same steps with nothing being written."""
    import torch.distributed as dist

    dist.barrier()
    begin = time.perf_counter()
    for _ in range(STEPS):
        state["trainer"].step()
    return {"steps": time.perf_counter() - begin}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    print(stamp())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # gigabytes would stay behind
    folder = Path(tempfile.mkdtemp())
    try:
        with Ranks(RANKS) as ranks:
            ranks.run(start, folder, deadline_s=600)
            quiet, found = _in_turns(ranks, rounds)
        size = measured(sum(file.stat().st_size for file in folder.glob("sync/step-*/*")), "B")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{PRESET}, {BATCH} × {CONTEXT} tokens on {RANKS} gloo ranks, {rounds} rounds")
    print(f"one checkpoint: {size}; {STEPS} step with nothing to write: {quiet.median}")
    plain = _stall(found[PLAIN])
    rows = []
    for way in WAYS:
        call, steps, rest = (found[way][part] for part in PARTS)
        stall = _stall(found[way])
        numbers = (stall.median, spread(stall), ratio(stall, plain), call.median, rest.median)
        rows.append((way, *numbers, ratio(steps, quiet)))
    headers = ("way", "stall", "spread", f"to {PLAIN}", "of it the call", "wait after the step", "step meanwhile")
    print(Table(headers, tuple(rows)))


def _stall(parts: dict[str, Samples]) -> Samples:
    """Seconds in which training stands still: the call, and what is left to wait for."""
    return Samples(tuple(map(sum, zip(parts["call"].seconds, parts["rest"].seconds))))


def _in_turns(ranks: Ranks, rounds: int) -> tuple[Samples, dict[str, dict[str, Samples]]]:
    """The steps alone, and the parts of each way; a first round is not counted."""
    quiet, found = [], {way: [] for way in WAYS}
    for index in range(rounds + 1):
        quiet.append(ranks.run(alone, deadline_s=600))
        place = index % len(WAYS)
        for way in WAYS[place:] + WAYS[:place]:
            found[way].append(ranks.run(save, way, deadline_s=600))
    return _samples(quiet[1:])["steps"], {way: _samples(runs[1:]) for way, runs in found.items()}


def _samples(runs: list[list[dict[str, float]]]) -> dict[str, Samples]:
    """Of each run the rank that took longest, part by part."""
    ranks = [{part: Samples(tuple(run[rank][part] for run in runs)) for part in runs[0][0]} for rank in range(RANKS)]
    return slowest(ranks)


if __name__ == "__main__":
    main()
