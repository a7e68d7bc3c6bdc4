"""The device's own count: bytes that torch's allocator handed out while some work ran."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile


@dataclass(frozen=True)
class Allocated:
    """Bytes above what was allocated before: at the fullest moment, and at the end."""

    peak: int
    end: int


def allocated_by(work: Callable[[], object], device: str = "cpu") -> Allocated:
    """Run `work()` and count what the allocator of this process gave and took back.

    On CUDA the caching allocator keeps these statistics. The CPU's allocator keeps none, but tells a
    profiler of each block: the events are added up in the order of time. Memory that libraries take
    for themselves (gloo's buffers, Python) is not torch's, and is not counted.
    """
    return _on_cuda(work) if device == "cuda" else _on_cpu(work)


def _on_cuda(work: Callable[[], object]) -> Allocated:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return Allocated(torch.cuda.max_memory_allocated() - before, torch.cuda.memory_allocated() - before)


def _on_cpu(work: Callable[[], object]) -> Allocated:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held, peak = 0, 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return Allocated(peak, held)
