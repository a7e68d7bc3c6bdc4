"""Capturing a trace of steps that are warm, into a file that is whole or absent."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.profiler import profile

STANDARD_ERROR = 2
NOISE = b"USDT:"


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
    before, and a step that raises leaves none. May run inside a rank. Kineto's marks for tracers of the system,
    two lines on standard error for each trace, are left out; its errors are not.
    Raises `ValueError` for fewer than one step or a negative warm-up or wait.
    """
    if steps < 1 or warmup < 0 or wait < 0:
        raise ValueError(f"steps must be at least 1, warmup and wait at least 0, not {steps}, {warmup} and {wait}")
    from torch.profiler import profile, schedule, supported_activities

    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name("draft-" + path.name)
    try:
        profiler = profile(
            activities=supported_activities(),
            schedule=schedule(wait=wait, warmup=warmup, active=steps, repeat=1),
            record_shapes=shapes,
            with_stack=stacks,
            profile_memory=memory,
            on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(draft)),
        )
        last = wait + warmup + steps
        with _quiet(profiler):
            for number in range(1, last + 1):
                step()
                with without_noise() if number in (wait + warmup, last) else nullcontext():  # it starts, it stops
                    profiler.step()
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return path


@contextmanager
def _quiet(profiler: "profile") -> Iterator[None]:
    """The profiler's own context, whose start and end are without noise and whose body is untouched."""
    with without_noise():
        profiler.__enter__()
    try:
        yield
    finally:
        with without_noise():
            profiler.__exit__(*sys.exc_info())


@contextmanager
def without_noise() -> Iterator[None]:
    """Let through what is written to file descriptor 2 meanwhile, at the end, but for Kineto's `USDT:` lines.

    Kineto ranks these above its errors, so that no KINETO_LOG_LEVEL hides the one and shows the other.
    """
    with suppress(ValueError, OSError, AttributeError):
        sys.stderr.flush()
    kept = os.dup(STANDARD_ERROR)
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), STANDARD_ERROR)
        try:
            yield
        finally:
            os.dup2(kept, STANDARD_ERROR)
            os.close(kept)
            written.seek(0)
            for line in written:
                if not line.startswith(NOISE):
                    os.write(STANDARD_ERROR, line)
