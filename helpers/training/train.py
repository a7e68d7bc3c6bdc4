"""The training script: one process, or the ranks that `torchrun` starts.

torchrun --nproc_per_node=4 -m helpers.training.train --preset tiny
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from helpers.errors import CourseError
from helpers.hardware.capabilities import usable_cores
from helpers.hardware.roofs import gemm_roof
from helpers.training.checkpoint import Checkpoints
from helpers.training.loop import MODES, Accumulation, Trainer
from helpers.training.metrics import StepMetrics
from helpers.training.plan import DTYPES, WRAPS, ShardingPlan
from helpers.training.presets import PRESETS, load_preset

ROOF_GEMM = {"cpu": 1024, "cuda": 8192}


class TrainError(CourseError):
    """Ranks that cannot be placed on this machine, or a metrics file that cannot be written."""


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="helpers.training.train", description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="tiny", help=f"one of {', '.join(PRESETS)}")
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps (default 100)")
    parser.add_argument("--seconds", type=float, default=None, help="stop before a step that would start later")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32", help="compute dtype")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--metrics", type=Path, default=None, help="write one JSON line a step to this file")
    plan = parser.add_argument_group("sharding plan")
    plan.add_argument("--wrap", choices=WRAPS, default="block", help="what forms a group of its own")
    plan.add_argument("--replicas", type=int, default=1, help="HSDP: copies of the sharded model")
    plan.add_argument("--tensor-parallel", type=int, default=1, help="ranks that share each block")
    plan.add_argument("--recompute", action="store_true", help="activation checkpointing of each block")
    plan.add_argument("--compile", action="store_true", help="torch.compile of each block")
    plan.add_argument("--on-meta", action="store_true", help="initialise shard by shard: no rank holds the model")
    step = parser.add_argument_group("step")
    step.add_argument("--micro-batches", type=int, default=1, help="parts of a rank's batch (default 1)")
    step.add_argument("--accumulation", choices=MODES, default=MODES[0])
    safe = parser.add_argument_group("checkpoints")
    safe.add_argument("--checkpoint", type=Path, default=None, help="folder; a run resumes from the newest one in it")
    safe.add_argument("--every", type=int, default=10, help="steps between two checkpoints (default 10)")
    safe.add_argument("--keep", type=int, default=2, help="checkpoints to keep (default 2)")
    safe.add_argument("--asynchronous", action="store_true", help="go on training while a checkpoint is written")
    return parser.parse_args(argv)


def plan_of(args: argparse.Namespace) -> ShardingPlan:
    """The sharding plan that the command line asks for."""
    return ShardingPlan(
        wrap=args.wrap,
        dtype=args.dtype,
        replicas=args.replicas,
        tensor_parallel=args.tensor_parallel,
        recompute=args.recompute,
        compile=args.compile,
    )


@contextmanager
def world(plan: ShardingPlan) -> Iterator[DeviceMesh | None]:
    """The plan's mesh over the ranks that `torchrun` or Slurm started, or None for a process of its own.

    NCCL with a GPU a rank where the machine has enough of them, else gloo on the CPU.
    """
    if "RANK" not in os.environ:
        plan.shards(1)
        yield None
        return
    local, local_world = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    device = "cuda" if torch.cuda.device_count() >= local_world else "cpu"
    if device == "cuda":
        torch.cuda.set_device(local)
    else:
        torch.set_num_threads(max(1, usable_cores() // local_world))
        if os.environ.get("MASTER_ADDR") in ("127.0.0.1", "localhost"):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        yield plan.make_mesh(device, dist.get_world_size())
    finally:
        dist.destroy_process_group()


def measured_roof(mesh: DeviceMesh | None, dtype: str) -> float:
    """FLOP/s of all ranks' devices together, measured by rank 0 and told to the others.

    On the CPU the ranks share one processor, so rank 0 measures with all its cores while the
    others wait; on GPUs the roof of one device counts once a rank.
    """
    device = mesh.device_type if mesh else "cpu"
    rate = torch.zeros(1, dtype=torch.float64, device=device)
    if mesh is None or mesh.get_rank() == 0:
        rate[0] = gemm_roof(ROOF_GEMM[device], dtype, device, threads=usable_cores()).rate.value
    if mesh is None:
        return rate.item()
    dist.broadcast(rate, 0)
    return rate.item() * (mesh.size() if device == "cuda" else 1)


def train(
    trainer: Trainer,
    steps: int,
    seconds: float | None = None,
    checkpoints: Checkpoints | None = None,
    every: int = 10,
) -> Iterator[StepMetrics]:
    """Yield the metrics of each step until `steps` are done or rank 0's `seconds` are over.

    With checkpoints one is saved after every `every` steps, and one at the end.
    """
    start, saved = time.perf_counter(), trainer.steps_done
    while trainer.steps_done < steps and not _over(trainer.mesh, start, seconds):
        yield trainer.step()
        if checkpoints and trainer.steps_done % every == 0:
            checkpoints.save(trainer)
            saved = trainer.steps_done
    if checkpoints:
        if saved != trainer.steps_done:
            checkpoints.save(trainer)
        checkpoints.finish()


def _over(mesh: DeviceMesh | None, start: float, seconds: float | None) -> bool:
    """Rank 0's clock decides for all: a rank that stopped alone would leave the others waiting."""
    if seconds is None:
        return False
    over = torch.tensor(float(time.perf_counter() - start >= seconds), device=mesh.device_type if mesh else "cpu")
    if mesh:
        dist.broadcast(over, 0)
    return bool(over)


@contextmanager
def _lines(path: Path | None, speaks: bool, after: int):
    """A writer of JSON lines. Lines of an earlier run up to step `after` stay; each new one is written whole."""
    if path is None or not speaks:
        yield lambda metrics: None
        return
    try:
        draft = path.with_name(path.name + ".tmp")
        draft.write_text("".join(_earlier(path, after)), encoding="utf-8")
        draft.replace(path)
        file = path.open("a", encoding="utf-8")
    except OSError as error:
        raise TrainError(f"cannot write metrics: {error}", where=str(path), mend="name a writable file") from None
    with file:
        yield lambda metrics: print(json.dumps(metrics.to_json()), file=file, flush=True)


def _earlier(path: Path, after: int) -> Iterator[str]:
    """The whole lines of steps up to `after`: what a killed run wrote and its checkpoint still knows."""
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if after and path.is_file() else ():
        try:
            if json.loads(line)["step"] <= after:
                yield line
        except (ValueError, KeyError):  # the last line of a killed run may be cut
            continue


def main(argv: list[str] | None = None) -> int:
    """Train and print one line a step from rank 0; 2 on an error of use."""
    args = parse(argv)
    try:
        preset, plan = load_preset(args.preset), plan_of(args)
        with world(plan) as mesh:
            speaks = mesh is None or mesh.get_rank() == 0
            trainer = Trainer(
                preset,
                mesh,
                plan,
                accumulation=Accumulation(args.micro_batches, args.accumulation),
                on_meta=args.on_meta,
                seed=args.seed,
                roof=measured_roof(mesh, args.dtype),
            )
            checkpoints = _open_checkpoints(args)
            resumed = checkpoints.load(trainer) if checkpoints else 0
            if resumed and speaks:
                print(f"resumed after step {resumed}", flush=True)
            with _lines(args.metrics, speaks, resumed) as write:
                for metrics in train(trainer, args.steps, args.seconds, checkpoints, args.every):
                    write(metrics)
                    if speaks:
                        print(metrics, flush=True)
    except CourseError as error:
        print(f"train: {error}", file=sys.stderr)
        return 2
    return 0


def _open_checkpoints(args: argparse.Namespace) -> Checkpoints | None:
    if args.every < 1:
        raise TrainError(f"--every is {args.every}", mend="use a whole number of steps, from 1")
    return Checkpoints(args.checkpoint, args.keep, args.asynchronous) if args.checkpoint else None


def leave(code: int) -> None:
    """End this process without the interpreter's shutdown.

    DTensors and meshes refer to the gloo group after it was destroyed; freed in the shutdown's
    arbitrary order, its threads now and then abort the process ("terminate called without an
    active exception"), and torchrun reports a good run as failed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main())
