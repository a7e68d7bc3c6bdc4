"""The matmul ladder beside wgpu-py, IREE and NumPy: GFLOP/s of fp32 products on one driver and the same cores.

python benchmarks/ladder.py [--driver lavapipe] [--rounds 15] [--sizes 256 512]

Every candidate is timed from the call to its end in the same rounds, in turns. The table has the median and
the best of the rounds, and the best rate in CPU time over all threads, which a busy machine disturbs least:
the ratios, to NumPy on one core and to the best Vulkan peer, are of that. wgpu and IREE are measured where
they are installed: pip install wgpu, and the extra `iree`. They take the driver that the
Vulkan loader finds, so that --driver is handed to it before anything is loaded.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import side_by_side

from helpers.edge import bounds, iree
from helpers.edge.kernels import ArgumentError, CooperativeMatmul, Matmul, Rung
from helpers.edge.vulkan import Device, driver, open_device, page_aligned
from helpers.measure import Samples, Table, measured

WGSL = """
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> c: array<f32>;
const SIZE = {size}u;
var<workgroup> tile_a: array<array<f32, 16>, 16>;
var<workgroup> tile_b: array<array<f32, 16>, 16>;
@compute @workgroup_size(16, 16)
fn main(@builtin(global_invocation_id) global: vec3u, @builtin(local_invocation_id) own: vec3u) {{
    var sum = 0.0;
    for (var start = 0u; start < SIZE; start += 16u) {{
        tile_a[own.y][own.x] = a[global.y * SIZE + start + own.x];
        tile_b[own.y][own.x] = b[(start + own.y) * SIZE + global.x];
        workgroupBarrier();
        for (var i = 0u; i < 16u; i++) {{ sum += tile_a[own.y][i] * tile_b[i][own.x]; }}
        workgroupBarrier();
    }}
    c[global.y * SIZE + global.x] = sum;
}}
"""
# The tiles that were fastest on lavapipe, where they are not the default.
FASTEST = {
    Rung.REGISTER: {"rows": 16, "columns": 16},
    Rung.VECTOR: {"rows": 16, "columns": 4},
    Rung.SUBGROUP: {"rows": 32},
}
ONE_CORE = "NumPy, one core"
Step = Callable[[], tuple[float, float]]


def main() -> None:
    """Print one table for each size."""
    arguments = _arguments()
    if arguments.numpy:
        a, b, c = np.random.default_rng(0).standard_normal((3, arguments.numpy, arguments.numpy), np.float32)
        return print(json.dumps(_timed(lambda: np.matmul(a, b, out=c))()))
    chosen = driver(arguments.driver)
    os.environ |= chosen.environment
    print(side_by_side.stamp("numpy", "wgpu", "iree-base-runtime"), arguments.driver, chosen.why_not)
    with open_device(driver=chosen if chosen.in_process else None, validation=False) as device:
        print(device.info.name, device.info.driver)
        for size in arguments.sizes:
            print(_table(device, size, arguments.rounds), "\n")


def _table(device: Device, size: int, rounds: int) -> Table:
    a, b = (page_aligned((size, size)) for _ in range(2))
    for array, seed in ((a, 0), (b, 1)):
        array[:] = np.random.default_rng(seed).standard_normal((size, size))
    c = np.empty_like(a)
    peers = {name: step for name, step in (("wgpu tiled", _wgpu(a, b)), ("IREE", _iree(a, b))) if step}
    numpy = {"NumPy": _timed(lambda: np.matmul(a, b, out=c)), ONE_CORE: _numpy_on_one_core(size)}
    calls = {**_ours(device, a, b), **peers, **numpy}
    taken = {name: [] for name in calls}
    for turn in range(rounds):
        names = list(calls)[turn % len(calls) :] + list(calls)[: turn % len(calls)]
        for name in names:
            taken[name].append(calls[name]())
    walls = {name: Samples(tuple(wall for wall, _ in pairs)) for name, pairs in taken.items()}
    busy = {name: min(cpu for _, cpu in pairs) for name, pairs in taken.items()}
    best_peer = min((busy[name] for name in peers), default=None)
    flop = 2 * size**3
    rows = tuple(
        (
            name,
            measured(flop / wall.median.value, "FLOP/s"),
            measured(flop / wall.best.value, "FLOP/s"),
            measured(flop / busy[name], "FLOP/s"),
            measured(busy[ONE_CORE] / busy[name], "×"),
            measured(best_peer / busy[name], "×") if best_peer else "",
        )
        for name, wall in walls.items()
    )
    return Table((f"{size}³", "median", "best", "per core second", "of NumPy's core", "of the best peer"), rows)


def _timed(work: Callable[[], object], window_s: float = 0.1) -> Step:
    """(seconds from the call to its end, seconds of CPU time over all threads) of a call, on average over a window.

    The window is long because a kernel counts the CPU time of threads that run elsewhere at its ticks only.
    """

    def step() -> tuple[float, float]:
        wall, cpu, times = time.perf_counter(), time.process_time(), 0
        while times == 0 or time.perf_counter() - wall < window_s:
            work()
            times += 1
        return (time.perf_counter() - wall) / times, (time.process_time() - cpu) / times

    return step


def _numpy_on_one_core(size: int) -> Step:
    """NumPy with one thread, in a child: two threads that wait for each other spin, and count as busy."""

    def step() -> tuple[float, float]:
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--numpy", str(size)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return tuple(json.loads(done.stdout))

    return step


def _ours(device: Device, a: np.ndarray, b: np.ndarray) -> dict[str, Step]:
    """Each rung as a recording that is submitted again, after its result was compared with float64."""
    steps, truth, bound = {}, a.astype(float) @ b, bounds.dot_bound(a, b)
    makers = {rung: (lambda rung=rung: Matmul(device, rung, **FASTEST.get(rung, {})), "f4", "f4") for rung in Rung}
    makers["cooperative f16"] = (lambda: CooperativeMatmul(device, "f16"), "f2", "f4")
    makers["cooperative s8"] = (lambda: CooperativeMatmul(device, "s8"), "i1", "i4")
    for name, (make, given, result) in makers.items():
        try:
            matmul = make()
        except ArgumentError as error:
            print(error.what)
            continue
        left, right = a.astype(given), b.astype(given)
        product = device.buffer(a.shape, result)
        recording = device.record(timestamps=False)
        with recording:
            matmul.record(recording, device.upload(left), device.upload(right), product)
        recording.submit()
        if given != "f4":
            truth, bound = left.astype(float) @ right, bounds.dot_bound(left, right)
        assert bounds.error_ratio(product.array(), truth, bound) <= 1, name
        steps[name] = _timed(recording.submit)
    return steps


def _wgpu(a: np.ndarray, b: np.ndarray) -> Step | None:
    """The tiled shader in WGSL through wgpu-py, or None with the reason printed."""
    try:
        import wgpu
    except ImportError as error:
        return print(f"wgpu: {error}")
    adapters = [adapter for adapter in wgpu.gpu.enumerate_adapters_sync() if adapter.info["backend_type"] == "Vulkan"]
    if not adapters:
        return print("wgpu: no Vulkan adapter")
    device = adapters[0].request_device_sync()
    usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
    buffers = [device.create_buffer_with_data(data=data, usage=usage) for data in (a, b, np.zeros_like(a))]
    module = device.create_shader_module(code=WGSL.format(size=len(a)))
    pipeline = device.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})
    entries = [{"binding": place, "resource": {"buffer": buffer}} for place, buffer in enumerate(buffers)]
    group = device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)

    def work() -> None:
        encoder = device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(pipeline)
        compute.set_bind_group(0, group)
        compute.dispatch_workgroups(len(a) // 16, len(a) // 16)
        compute.end()
        device.queue.submit([encoder.finish()])
        device.queue.read_buffer(buffers[2], size=4)  # waits; on_submitted_work_done_sync fails in wgpu 0.32

    work()
    found = np.frombuffer(device.queue.read_buffer(buffers[2]), np.float32).reshape(a.shape)
    assert bounds.error_ratio(found, a.astype(float) @ b, bounds.dot_bound(a, b)) <= 1, "wgpu"
    return _timed(work)


def _iree(a: np.ndarray, b: np.ndarray) -> Step | None:
    """A product that IREE compiled for the same driver, or None with the reason printed.

    By its own benchmark program, one start a round: its Python runtime returns before the product is done.
    What it computes is compared with float64 first.
    """
    if reason := iree.why_not():
        return print(f"IREE: {reason}")
    size = len(a)
    program = iree.compile_program(iree.matmul(size, size, size))
    (found,) = iree.run(program, "matmul", a, b)
    assert bounds.error_ratio(found, a.astype(float) @ b, bounds.dot_bound(a, b)) <= 1, "IREE"
    module = Path(tempfile.mkdtemp(), "matmul.vmfb")
    module.write_bytes(program.module)
    matrix = f"--input={size}x{size}xf32=1"
    command = [iree.tool("iree-benchmark-module"), f"--module={module}", "--device=vulkan", "--function=matmul"]
    command += [matrix, matrix, "--benchmark_format=json", "--benchmark_min_time=0.2s"]

    def step() -> tuple[float, float]:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout[done.stdout.index("{") :])["benchmarks"][0]
        assert found["time_unit"] == "ms"
        return found["real_time"] / 1e3, found["cpu_time"] / 1e3

    return step


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--driver", default="lavapipe")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--numpy", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 512])
    return parser.parse_args()


if __name__ == "__main__":
    main()
