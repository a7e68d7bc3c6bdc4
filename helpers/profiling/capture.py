"""Capturing a trace of steps that are warm, into a file that is whole or absent."""

import os
from collections.abc import Callable
from pathlib import Path


def capture(step: Callable[[], object], path: Path, *, steps: int = 2, warmup: int = 2) -> Path:
    """Run `step` warmup + steps times and write a trace of the last `steps` of them to `path`.

    The warm-up runs under the profiler too and is thrown away: the first steps pay for allocations,
    autotuning and the profiler's own start. Shapes are recorded. `path` ends in `.json` or
    `.json.gz`; it appears when the trace is complete. May run inside a rank.
    Raises `ValueError` for fewer than one step or a negative warm-up.
    """
    if steps < 1 or warmup < 0:
        raise ValueError(f"steps must be at least 1 and warmup at least 0, not {steps} and {warmup}")
    from torch.profiler import profile, schedule, supported_activities

    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name("draft-" + path.name)
    plan = schedule(wait=0, warmup=warmup, active=steps, repeat=1)
    with profile(
        activities=supported_activities(),
        schedule=plan,
        record_shapes=True,
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(draft)),
    ) as profiler:
        for _ in range(warmup + steps):
            step()
            profiler.step()
    os.replace(draft, path)
    return path
