"""What one dispatch costs on the host, beside wgpu-py and numba-vulkan on the same driver: prints tables, asserts
nothing.

python benchmarks/dispatch.py [--rounds 200] [--processes 6]

The others are no part of the course's environment. With them, in one of their own:
`python -m venv V; V/bin/pip install wgpu numba-vulkan; PYTHONPATH=. V/bin/python benchmarks/dispatch.py`.

The kernel is SAXPY over 64 elements, one workgroup, so that what is timed is the way there and back: record, submit,
wait. Each call ends when the device has. wgpu-py cannot submit a command buffer twice, so both ways are shown:
recorded once, and recorded anew each time. `driver alone` is the same command buffer handed over by three bare calls
of the driver; what a library takes beyond it is its overhead.

A CPU driver's threads fall on the cores by chance, once for each process, and that alone changes times fivefold. So
several processes run, and of each way the best one's median is shown.
"""

import argparse
import json
import struct
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
from side_by_side import in_turns, stamp

from helpers.edge import shaders
from helpers.edge.vulkan import Device, devices, open_device, why_none
from helpers.measure import Table, measured

N, MANY = 64, 100
DRIVER = "driver alone"
OTHERS = {"wgpu-py": "wgpu", "numba-vulkan": "numba_vulkan"}
PUSH = struct.pack("<If", N, 1.0)
Call = Callable[[], object]
WGSL = """
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < 64u) { y[id.x] = x[id.x] + y[id.x]; }
}
"""


def main() -> None:
    """Time one dispatch, and a hundred in one submission, for each library that is here."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=200)
    arguments.add_argument("--processes", type=int, default=6)
    arguments.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    asked = arguments.parse_args()
    if not devices():
        raise SystemExit(why_none())
    if asked.child:
        print(json.dumps(one_process(asked.rounds)))
        return
    info = devices()[0]
    print(stamp("numpy", "wgpu", "numba-vulkan"))
    print(info.name, info.driver, f"the best of {asked.processes} processes", sep=" · ")
    for name, package in OTHERS.items():
        if not find_spec(package):
            print(f"{name} is not here: pip install {package.replace('_', '-')}, in an environment of its own")
    command = [sys.executable, __file__, "--child", "--rounds", str(asked.rounds)]
    found = [
        json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
        for _ in range(asked.processes)
    ]
    for count in (1, MANY):
        medians = [one[str(count)] for one in found]
        print(table({name: min(one[name] for one in medians) for name in medians[0]}, count))


def one_process(rounds: int) -> dict[str, dict[str, float]]:
    """The median seconds of each way, by the dispatches of a call."""
    with open_device(devices()[0].name, validation=False) as device:
        return {str(count): medians(device, count, rounds if count == 1 else rounds // 4) for count in (1, MANY)}


def medians(device: Device, count: int, rounds: int) -> dict[str, float]:
    """The median seconds of each way to make `count` dispatches and wait, by its name."""
    ways = ours(device, count)
    for name, package in OTHERS.items():
        if find_spec(package):
            ways |= {name: THEIRS[name](device.info.name, count)}
    return {name: taken.median.value for name, taken in in_turns(ways, rounds, warmup=5).items()}


def ours(device: Device, count: int) -> dict[str, Call]:
    """Recorded once with and without timestamps, recorded anew, and one `run` a dispatch."""
    kernel, x, y = device.kernel(shaders.spirv("saxpy")), device.buffer(N), device.buffer(N)

    def record(timestamps: bool):
        with device.record(timestamps=timestamps) as recording:
            for _ in range(count):
                recording.dispatch(kernel, (1,), [x, y], PUSH)
        return recording

    def run() -> None:
        for _ in range(count):
            kernel.run((1,), [x, y], PUSH)

    once = record(False)
    return {
        DRIVER: bare(device, once),
        "recorded once": once.submit,
        "recorded once, timed": record(True).submit,
        "recorded anew": lambda: record(False).submit_once(),
        "recorded anew, timed": lambda: record(True).submit_once(),
        "kernel.run": run,
    }


def bare(device: Device, recording) -> Call:
    """Submit and wait with nothing around it."""
    functions, slot, deadline = device.functions, recording._slot, 10**10

    def run() -> None:
        functions.vkResetFences(device.handle, 1, slot.fences)
        functions.vkQueueSubmit(device.queue, 1, slot.submit, slot.fence)
        functions.vkWaitForFences(device.handle, 1, slot.fences, 1, deadline)

    return run


def wgpu(device_name: str, count: int) -> Call:
    """The same in WGSL, in one compute pass."""
    import wgpu as library

    adapters = library.gpu.enumerate_adapters_sync()
    adapter = next(a for a in adapters if a.info["device"] in device_name and a.info["backend_type"] == "Vulkan")
    device = adapter.request_device_sync()
    usage = library.BufferUsage.STORAGE | library.BufferUsage.COPY_SRC
    buffers = [device.create_buffer_with_data(data=np.zeros(N, np.float32), usage=usage) for _ in range(2)]
    module = device.create_shader_module(code=WGSL)
    pipeline = device.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})
    entries = [{"binding": i, "resource": {"buffer": buffer}} for i, buffer in enumerate(buffers)]
    group = device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)

    def run() -> None:
        encoder = device.create_command_encoder()
        steps = encoder.begin_compute_pass()
        for _ in range(count):  # as ours, each dispatch says what it runs on what
            steps.set_pipeline(pipeline)
            steps.set_bind_group(0, group)
            steps.dispatch_workgroups(1)
        steps.end()
        device.queue.submit([encoder.finish()])
        device._poll_wait()  # quicker than on_submitted_work_done_sync, which sleeps between its looks

    return run


def numba_vulkan(device_name: str, count: int) -> Call:
    """The same as a Python kernel, on arrays that lie on the device."""
    import numba_vulkan as library

    library.select_device(device_name)

    @library.jit
    def saxpy(x, y):
        i = library.global_id(0)
        if i < x.size:
            y[i] = x[i] + y[i]

    x, y = (library.to_device(np.zeros(N, np.float32)) for _ in range(2))

    def run() -> None:
        for _ in range(count):
            saxpy[1, 64](x, y)

    return run


THEIRS = {"wgpu-py": wgpu, "numba-vulkan": numba_vulkan}


def table(seconds: dict[str, float], count: int) -> Table:
    """Time of a call, what it adds a dispatch beyond the driver, and that over what wgpu-py adds where it is here."""
    added = {name: (taken - seconds[DRIVER]) / count for name, taken in seconds.items()}
    base = added.get("wgpu-py")
    rows = [
        (name, measured(taken, "s"), measured(added[name], "s"), measured(added[name] / base, "×") if base else "")
        for name, taken in seconds.items()
    ]
    return Table(
        (f"{count} dispatch{'es' * (count > 1)} a call", "call", "overhead a dispatch", "over wgpu-py's"), tuple(rows)
    )


if __name__ == "__main__":
    main()
