"""`helpers record`: measure what this machine can show, so that lessons on other machines can replay it."""

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from helpers.course.bundle import Bundle, Number, Part, write_bundle
from helpers.course.doctor import machine
from helpers.course.report import commit, packages
from helpers.errors import CourseError
from helpers.hardware import Target, detect_target, load_target
from helpers.measure.stamps import device_name

ROOT = Path(__file__).parents[2]
STEPS = 6


class Absent(CourseError):
    """A part that this machine cannot record."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--target", default=None, help="as helpers run --target; default: what fits this machine")
    parser.add_argument("--out", type=Path, default=None, help="file to write (default runs/recordings/…)")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), help="record these parts only")


def execute(args: argparse.Namespace) -> int:
    """Record, write, print the receipt; 1 when nothing at all was live."""
    target = load_target(args.target) if args.target else load_target(detect_target(machine()))
    bundle = record(target, args.only)
    name = f"{bundle.date[:10]}-{bundle.target}.json"
    path = write_bundle(bundle, args.out or ROOT / "runs/recordings" / name)
    print(bundle.receipt())
    print(f"written to {path}")
    return 0 if any(part.live for part in bundle.parts) else 1


def record(target: Target, only: list[str] | None = None) -> Bundle:
    """Measure each part in turn. What fails is a part that is not live, with the reason; nothing is lost by it."""
    unmet = target.unmet(machine())
    if unmet:
        raise Absent(
            f"target {target.name} needs {', '.join(unmet)}", where="this machine", mend="name another --target"
        )
    head, dirty = commit()
    parts = tuple(_recorded(name, PARTS[name], target) for name in only or PARTS)
    when = datetime.now(UTC).isoformat(timespec="seconds")
    return Bundle(target.name, device_name(target.lesson_device), when, head, dirty, _system(), packages(), parts)


def _recorded(name: str, measure: Callable, target: Target) -> Part:
    try:
        numbers, detail = measure(target)
    except CourseError as error:
        return Part(name, False, f"{error.what}; {error.mend}".rstrip("; "))
    except Exception as error:  # a recording of hours must not be lost to one part
        return Part(name, False, f"{type(error).__name__}: {error}".splitlines()[0])
    return Part(name, True, "", tuple(numbers), detail)


def _roofs(target: Target) -> tuple[list[Number], dict]:
    """The rates that the lessons' device reaches: matrix products by dtype, triad, and read by cache level."""
    from helpers.hardware.roofs import cache_roofs, gemm_roofs, triad_roof

    device, sizes = target.lesson_device, target.sizes
    roofs = [*gemm_roofs(sizes.roof_gemm, device), triad_roof(sizes.roof_triad_mib, device)]
    numbers = [Number(f"{roof.name} {roof.dtype}", roof.rate.value, roof.rate.unit) for roof in roofs]
    levels = cache_roofs(device).levels
    numbers += [Number(f"read, {level.name}", level.roof.rate.value, "B/s") for level in levels]
    return numbers, {"cautions": [roof.caution for roof in roofs if roof.caution]}


def _training(target: Target) -> tuple[list[Number], dict]:
    """Sharded steps on the target's ranks, one GPU's where there is one: seconds, tokens, memory."""
    from helpers.training.presets import load_preset
    from helpers.training.ranks import Ranks

    device = "cuda" if target.lesson_device == "cuda" else "cpu"
    count = target.ranks if target.device == device else 1
    preset = load_preset(target.sizes.preset if device == "cuda" else "tiny")
    with Ranks(count, device) as ranks:
        steps, held = ranks.run(_sharded_steps, preset, device, STEPS, deadline_s=600)[0]
    last = steps[-1]
    numbers = [
        Number("step", last["seconds"], "s"),
        Number("tokens per second", last["tokens_per_second"], "tokens/s"),
    ]
    numbers += [Number(last["memory"], last["peak_bytes"], "B")]
    numbers += [Number(f"held: {kind}", size, "B") for kind, size in held.items()]
    return numbers, {"preset": preset.name, "ranks": count, "device": device, "steps": steps}


def _sharded_steps(preset, device: str, steps: int) -> tuple[list[dict], dict[str, int]]:
    import torch.distributed as dist

    from helpers.training.loop import Trainer
    from helpers.training.plan import ShardingPlan

    plan = ShardingPlan(dtype="bf16" if device == "cuda" else "fp32")
    trainer = Trainer(preset, plan.make_mesh(device, dist.get_world_size()), plan)
    return [trainer.step().to_json() for _ in range(steps)], trainer.held_bytes()


def _trace(target: Target) -> tuple[list[Number], dict]:
    """A trace of warm training steps of one process on the lessons' device, distilled, and its breakdown."""
    from helpers.profiling.breakdown import breakdown
    from helpers.profiling.capture import capture
    from helpers.profiling.distilled import distil_trace
    from helpers.profiling.trace import read_trace
    from helpers.training.loop import Trainer
    from helpers.training.presets import load_preset

    trainer = Trainer(load_preset("tiny"), device=target.lesson_device)
    with tempfile.TemporaryDirectory() as folder:
        trace = read_trace(capture(trainer.step, Path(folder, "trace.json"), steps=2, warmup=3))
    found = breakdown(trace)
    numbers = [Number(f"trace: {each.what}", each.value, each.unit) for each in found.evidence]
    return numbers, {"verdict": found.verdict, "trace": distil_trace(trace)}


def _counters(target: Target) -> tuple[list[Number], dict]:
    """Hardware counters of the course's kernels, one narrow collection each."""
    from helpers.profiling.counters.collector import collect

    if target.lesson_device != "cuda":
        raise Absent("hardware counters are NVIDIA's", mend="record with --target cuda-1")
    from helpers.course.record_kernels import WORKLOADS

    found, notes = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for name in WORKLOADS:
            script = ["-m", "helpers.course.record_kernels", name]
            run = collect([_python(), *script], folder=folder, launches=3, skip=10, deadline=300.0, fallback={})
            found[name] = [_plain(record) for record in run.records if run.live]
            notes |= {} if run.live else {name: run.note}
    if not any(found.values()):
        raise Absent(next(iter(notes.values())), mend="see helpers doctor")
    times = {name: record["metrics"].get("gpu__time_duration.sum") for name, kept in found.items() for record in kept}
    numbers = [Number(f"{name}: kernel", time, "s") for name, time in times.items() if time is not None]
    return numbers, {"kernels": found, "notes": notes}


def _plain(record) -> dict:
    """A kernel record as JSON, without counters whose collection failed: JSON has no NaN."""
    content = json.loads(json.dumps(asdict(record), default=dict))
    content["metrics"] = {name: value for name, value in content["metrics"].items() if name not in record.failed}
    return content


def _vulkan(target: Target) -> tuple[list[Number], dict]:
    """Every Vulkan device: what it can do, and the tiled matrix product on it."""
    import numpy as np

    from helpers.edge.matmul import TiledMatmul, error_ratio
    from helpers.edge.vulkan import devices, open_device, why_none

    found, numbers = [], []
    size = target.sizes.matmul
    a, b = (np.random.default_rng(seed).standard_normal((size, size), dtype=np.float32) for seed in (0, 1))
    for info in devices():
        with open_device(info.name) as device:
            kernel, out = TiledMatmul(device), device.buffer((size, size))
            buffers = (device.upload(a), device.upload(b), out)
            times = [kernel.run(*buffers).duration for _ in range(5)]
            ratio = error_ratio(a, b, out.array())
        found.append({"name": info.name, "driver": info.driver, "kind": info.kind})
        numbers.append(Number(f"{info.name}: tiled {size}³, error in units of its bound", ratio, ""))
        fastest = min((time.value for time in times if time is not None), default=None)
        if fastest:
            numbers.append(Number(f"{info.name}: tiled {size}³", 2 * size**3 / fastest, "FLOP/s"))
    if not found:
        raise Absent(f"no Vulkan device: {why_none()}", mend="see helpers doctor")
    return numbers, {"devices": found}


def _metal(target: Target) -> tuple[list[Number], dict]:
    """The receipt of a Mac: every MSL kernel compiled by Apple's compiler and compared with the CPU."""
    from helpers.edge.metal import receipt

    if not machine().mps:
        raise Absent("this machine has no Apple GPU", mend="run helpers record --target mps on a Mac")
    with tempfile.TemporaryDirectory() as folder:
        receipt.make(Path(folder))
        [made] = receipt.read(Path(folder))
    numbers = [Number(f"{line.name}: call", line.seconds, "s") for line in made.kernels if not line.problem]
    return numbers, {"receipt": asdict(made)}


PARTS = {
    "roofs": _roofs,
    "training": _training,
    "trace": _trace,
    "counters": _counters,
    "vulkan": _vulkan,
    "metal": _metal,
}


def _python() -> str:
    import sys

    return sys.executable


def _system() -> str:
    import platform

    return f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
