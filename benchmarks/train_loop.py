"""Our `Trainer` beside the barest FSDP2 loop and beside accelerate's: step time, peak memory, and the same losses.

python benchmarks/train_loop.py [--preset tiny] [--rounds 40]
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

from side_by_side import in_turns, quartiles, ratio, slowest, spread, stamp, together

from helpers.measure import Samples, Table, measured
from helpers.training.presets import Preset, load_preset
from helpers.training.ranks import Ranks

RANKS = 4
STEPS = 3
BATCH, CONTEXT = 4, 128
TINY = "tiny"
BARE = "bare loop"


def ours(preset: Preset) -> Callable[[], float]:
    """A step of `Trainer`; returns the loss over all ranks."""
    from helpers.training.loop import Trainer
    from helpers.training.plan import ShardingPlan

    plan = ShardingPlan()
    trainer = Trainer(preset, plan.make_mesh("cpu", RANKS), plan)
    return lambda: trainer.step().loss


def bare(preset: Preset) -> Callable[[], float]:
    """The barest loop with the same result; returns the loss of this rank, which costs no collective."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from helpers.training.model import build_model

    mesh = init_device_mesh("cpu", (RANKS,))
    model = build_model(preset.model, 0)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=preset.learning_rate)
    clip = torch.nn.utils.clip_grad_norm_
    return _loop(preset, model, optimizer, lambda loss: loss.backward(), clip)


def with_accelerate(preset: Preset) -> Callable[[], float]:
    """The same loop through accelerate's FSDP2; returns the loss of this rank."""
    import torch
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    from accelerate.utils import DistributedType

    from helpers.training.model import build_model

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=True,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Block"],
        cpu_ram_efficient_loading=False,
    )
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    # On the CPU accelerate drops the plugin without a word; its FSDP2 code runs there all the same.
    accelerator.state.distributed_type, accelerator.state.fsdp_plugin = DistributedType.FSDP, plugin
    model = build_model(preset.model, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=preset.learning_rate)
    model, optimizer = accelerator.prepare(model, optimizer)
    return _loop(preset, model, optimizer, accelerator.backward, accelerator.clip_grad_norm_)


def _loop(preset: Preset, model, optimizer, backward, clip) -> Callable[[], float]:
    import torch.distributed as dist
    from torch.nn import functional as F

    from helpers.training.data import Batches, standard_library

    text, place = standard_library().train, (dist.get_rank(), RANKS, 0)
    batches, done = Batches(text, preset.model.context, preset.batch, *place), [0]

    def step() -> float:
        batch = batches.at(done[0])
        loss = F.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten())
        backward(loss)
        clip(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = preset.learning_rate_at(done[0])
        optimizer.step()
        optimizer.zero_grad()
        done[0] += 1
        return loss.item()

    return step


def times(makers: dict, preset: Preset, rounds: int) -> tuple:
    """On a rank, by name: samples of wall time, samples of processor time, and the loss of the last step."""
    import torch.distributed as dist

    steps, losses = {name: make(preset) for name, make in makers.items()}, {}
    worked = {name: [] for name in makers}

    def take(name: str) -> None:
        start = time.process_time()
        losses[name] = steps[name]()
        worked[name].append(time.process_time() - start)

    calls = {name: partial(take, name) for name in makers}
    walls = in_turns(calls, rounds, warmup=STEPS, before=dist.barrier)
    return walls, {name: Samples(tuple(values[STEPS:])) for name, values in worked.items()}, losses


def memory(make: Callable, preset: Preset) -> int:
    """On a rank of its own pool: peak of the resident memory over what it held when all was imported, in bytes."""
    import psutil
    import torch

    from helpers.training import loop  # noqa: F401
    from helpers.training.metrics import peak_memory

    if make is with_accelerate:
        import accelerate  # noqa: F401
    before = psutil.Process().memory_info().rss
    step = make(preset)
    for _ in range(STEPS):
        step()
    return peak_memory(torch.device("cpu"))[0] - before


def cut(name: str) -> Preset:
    """The preset, with a batch that two cores can train on unless it is tiny."""
    preset = load_preset(name)
    if name == TINY:
        return preset
    return replace(preset, batch=BATCH, model=replace(preset.model, context=CONTEXT))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default=TINY)
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()
    preset, makers = cut(args.preset), {BARE: bare, "Trainer": ours}
    print(stamp("accelerate"))
    if find_spec("accelerate"):
        makers["accelerate FSDP2"] = with_accelerate
    else:
        print("accelerate: not installed (pip install accelerate)")
    with Ranks(RANKS) as ranks:
        found = ranks.run(times, makers, preset, args.rounds, deadline_s=3600)
    walls, worked = slowest([one[0] for one in found]), together([one[1] for one in found])
    peaks = {}
    for name, make in makers.items():
        with Ranks(RANKS) as ranks:
            peaks[name] = max(ranks.run(memory, make, preset, deadline_s=600))
    losses = {name: sum(one[2][name] for one in found) / RANKS for name in makers}
    rows = [
        (
            name,
            walls[name].median,
            spread(walls[name]),
            ratio(walls[name], walls[BARE]),
            quartiles(walls[name], walls[BARE]),
            worked[name].median,
            ratio(worked[name], worked[BARE]),
            quartiles(worked[name], worked[BARE]),
            measured(peaks[name], "B"),
            measured(peaks[name] / peaks[BARE], "×"),
            f"{losses[name]:.6f}",
        )
        for name in makers
    ]
    print(
        f"{args.preset}: {preset.batch} × {preset.model.context} tokens on {RANKS} gloo ranks, {args.rounds} rounds"
    )
    compared = ("to bare", "quartiles")
    memory_columns = ("peak memory", "to bare", "last loss")
    headers = ("loop", "step, median", "spread", *compared, "processor time of all ranks", *compared, *memory_columns)
    print(Table(headers, tuple(rows)))


if __name__ == "__main__":
    main()
