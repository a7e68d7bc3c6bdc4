"""Traces that are made for a lab, in the form in which torch.profiler writes them: no GPU ran them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers.profiling.counters.record import KernelRecord

HOST, DEVICE = 1, 0
STEP_US = 40.0
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::{}>(int)"


@dataclass(frozen=True)
class Call:
    """Operators inside each other, of which the innermost launches one kernel; () launches outside of any.

    kernel, grid, block: as the trace names them. seconds: that the kernel runs. delay: seconds that its stream keeps
    it waiting after the launch. shapes: of the innermost operator's inputs, fp32. graph: a CUDA graph launches it.
    """

    operators: tuple[str, ...]
    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...] = (256, 1, 1)
    seconds: float = 5e-6
    delay: float = 0.0
    shapes: tuple[tuple[int, ...], ...] = ()
    thread: int = 100
    graph: bool = False


def kineto_name(record: KernelRecord) -> str:
    """The kernel's name as torch.profiler spells it, where ncu writes `<unnamed>` and casts."""
    name = record.name.replace("<unnamed>", "(anonymous namespace)")
    for cast in ("(int)", "(unsigned long)", "(bool)"):
        name = name.replace(cast, "")
    return name


def call_of(record: KernelRecord, operators: tuple[str, ...], **more: object) -> Call:
    """A call that launches the kernel of a record, as long as it ran under the counters."""
    seconds = record.require("duration")
    return Call(operators, kineto_name(record), record.grid, record.block, seconds, **more)


def write_trace(path: Path, calls: Sequence[Call]) -> Path:
    """Write the trace of some calls, one after the other, and return its path. A step of torch.profiler is around."""
    events, end = [], 0.0
    for number, call in enumerate(calls):
        start = 100.0 + STEP_US * number
        launch = start + 2.0 * len(call.operators) + 1.0
        for depth, name in enumerate(call.operators):
            args = {"External id": 1000 + 10 * number + depth}
            if call.shapes and depth == len(call.operators) - 1:
                args |= {"Input Dims": list(map(list, call.shapes)), "Input type": ["float"] * len(call.shapes)}
            events.append(_event("cpu_op", name, start + 2.0 * depth, 30.0 - 4.0 * depth, HOST, call.thread, args))
        name = "cudaGraphLaunch" if call.graph else "cudaLaunchKernel"
        events.append(_event("cuda_runtime", name, launch, 4.0, HOST, call.thread, {"correlation": 7 + number}))
        args = {"correlation": 7 + number, "grid": list(call.grid), "block": list(call.block), "device": 0}
        at = launch + 8.0 + 1e6 * call.delay
        events.append(_event("kernel", call.kernel, at, 1e6 * call.seconds, DEVICE, 7 + bool(call.delay), args))
        end = max(end, at + 1e6 * call.seconds, start + STEP_US)
    events.append(_event("user_annotation", "ProfilerStep#5", 90.0, end, HOST, 100, {}))
    content = {"traceEvents": events, "deviceProperties": [{"name": "made for the lab"}]}
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def _event(category: str, name: str, start: float, duration: float, process: int, thread: int, args: dict) -> dict:
    times = {"ts": round(start, 3), "dur": round(duration, 3)}
    return {"ph": "X", "cat": category, "name": name, **times, "pid": process, "tid": thread, "args": args}


def square_program(random: KernelRecord, square: KernelRecord, reduction: KernelRecord) -> tuple[Call, ...]:
    """Twice: fill a tensor, square it with Triton and with torch, and compare; three of seven kernels are counted.

    The operators and grids of the other kernels are those that such a program has; nobody recorded them.
    """
    once = (
        call_of(random, ("aten::randn", "aten::normal_")),
        call_of(square, (), delay=60e-6),
        Call(("aten::square", "aten::pow"), ELEMENTWISE.format("pow_tensor_scalar_kernel"), (1391, 1, 1)),
        Call(("aten::allclose", "aten::isclose", "aten::eq"), ELEMENTWISE.format("CompareEqFunctor"), (1391, 1, 1)),
        Call(("aten::allclose", "aten::isclose", "aten::abs"), ELEMENTWISE.format("AbsFunctor"), (1391, 1, 1)),
        Call(("aten::allclose", "aten::isclose", "aten::le"), ELEMENTWISE.format("CompareLEFunctor"), (1391, 1, 1)),
        call_of(reduction, ("aten::allclose", "aten::all")),
    )
    return once + once


def product_program(*products: KernelRecord) -> tuple[Call, ...]:
    """One matrix product of 1024² a record, each by `aten::mm` inside `aten::linear`, and an addition after it."""
    found = []
    for record in products:
        found.append(call_of(record, ("aten::linear", "aten::mm"), shapes=((1024, 1024), (1024, 1024))))
        found.append(Call(("aten::add",), ELEMENTWISE.format("add"), (1024, 1, 1)))
    return tuple(found)
