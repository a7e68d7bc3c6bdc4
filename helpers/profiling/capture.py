"""Capturing a trace of steps that are warm, into a file that is whole or absent."""

import os
from collections.abc import Callable
from pathlib import Path


def capture(
    step: Callable[[], object],
    path: Path,
    *,
    steps: int = 2,
    warmup: int = 2,
    wait: int = 0,
    shapes: bool = True,
    stacks: bool = False,
    memory: bool = False,
) -> Path:
    """Run `step` wait + warmup + steps times and write a trace of the last `steps` of them to `path`.

    wait: steps before the profiler starts; they cost nothing. warmup: steps under the profiler that are
    thrown away: the first ones pay for allocations, autotuning and the profiler's own start. shapes: of
    the operators' inputs. stacks: the Python calls too, which slows the host down. memory: each
    allocation. `path` ends in `.json` or `.json.gz`; it appears when the trace is complete, never
    before, and a step that raises leaves none. May run inside a rank.
    Raises `ValueError` for fewer than one step or a negative warm-up or wait.
    """
    if steps < 1 or warmup < 0 or wait < 0:
        raise ValueError(f"steps must be at least 1, warmup and wait at least 0, not {steps}, {warmup} and {wait}")
    from torch.profiler import profile, schedule, supported_activities

    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name("draft-" + path.name)
    try:
        with profile(
            activities=supported_activities(),
            schedule=schedule(wait=wait, warmup=warmup, active=steps, repeat=1),
            record_shapes=shapes,
            with_stack=stacks,
            profile_memory=memory,
            on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(draft)),
        ) as profiler:
            for _ in range(wait + warmup + steps):
                step()
                profiler.step()
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return path
