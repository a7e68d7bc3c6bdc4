"""What makes conclusions from a trace doubtful, found before any is drawn."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from helpers.profiling.columns import COPIES, NONE, Columns, Intervals, starts_work
from helpers.profiling.joins import fitting_ids, match

if TYPE_CHECKING:
    from helpers.profiling.trace import Trace

START_UP = ("Malloc", "HostAlloc", "ModuleLoad", "LibraryLoad", "StreamCreate", "StreamPriorityRange")


@dataclass(frozen=True)
class Problem:
    """One reason to doubt.

    name: a word for it, as `cold`. what: what was seen, with counts. why: what goes wrong if it is
    passed over. mend: what to do. count: of what was seen, 1 where it is not a matter of counting.
    """

    name: str
    what: str
    why: str
    mend: str
    count: int = 1

    def __str__(self) -> str:
        return self.what


def health(trace: "Trace") -> tuple[Problem, ...]:
    """The problems of a trace, () when there is none to see."""
    checks = (_host, _steps, _start_up, _recording, _device, _ids, _graphs, _clock)
    return tuple(problem for check in checks for problem in check(trace, trace.columns))


def _host(trace: "Trace", columns: Columns) -> Iterator[Problem]:
    operators = columns.operators
    if not len(operators):
        yield Problem(
            "no-operators",
            "no operator was recorded: the schedule may never have been active",
            "nothing can be said of what the host did",
            "call profiler.step() often enough to leave wait and warm-up, and record ProfilerActivity.CPU",
        )
    elif not operators.shapes.where(bool).any():
        yield Problem(
            "no-shapes",
            f"none of {len(operators)} operators has the shapes of its inputs",
            "the work of an operator follows from its shapes: no FLOP, no bytes, no roofline",
            "record with record_shapes=True",
            len(operators),
        )
    if stacks := int(columns.of("python_function").sum()):
        yield Problem(
            "stacks",
            f"Python stacks were recorded: {stacks} calls",
            "recording each call slows the host down: gaps between kernels look longer than they are",
            "judge how busy the device is from a trace without stacks",
            stacks,
        )


def _steps(trace: "Trace", columns: Columns) -> Iterator[Problem]:
    annotations = columns.annotations
    steps = annotations.take(annotations.is_step)
    if not len(steps):
        yield Problem(
            "no-steps",
            "no step is marked: call profiler.step() after each",
            "warm-up and steady state cannot be told apart, and nothing is a step's share",
            "give the profiler a schedule and call profiler.step() after each step",
        )
    elif steps.name.where(lambda name: name == "ProfilerStep#0").any():
        yield Problem(
            "cold",
            "the first step is in it: allocations and start-up are measured, not the steady state",
            "a first step can take many times what the others take",
            "use a schedule with warm-up: capture(step, path, warmup=2)",
        )


def _start_up(trace: "Trace", columns: Columns) -> Iterator[Problem]:
    calls = columns.launches
    starting = calls.take(
        calls.name.where(lambda name: any(word in name for word in START_UP) and "Async" not in name)
    )
    starting = starting.take(~starting.name.where(starts_work))
    if len(starting):
        yield Problem(
            "start-up",
            f"{len(starting)} of {len(calls)} calls allocate, load code or create streams: {_most(starting)}",
            "such calls happen once and may wait for the device: they belong to no steady step",
            "warm up longer, until the allocator and the autotuner have seen every shape",
            len(starting),
        )


def _recording(trace: "Trace", columns: Columns) -> Iterator[Problem]:
    recorder = columns.intervals(columns.of("Trace"))
    done = columns.intervals(columns.of("cpu_op", "user_annotation", "kernel", *COPIES))
    if len(recorder) and len(done) and (late := int((done.end > recorder.end.max()).sum())):
        yield Problem(
            "cut-off",
            f"{late} intervals end after the recording stopped",
            "they were still running: their length, and the last step, are not what they would have been",
            "synchronise the device before the profiler stops, and stop it between two steps",
            late,
        )


def _device(trace: "Trace", columns: Columns) -> Iterator[Problem]:
    launches = columns.launches.take(columns.launches.starts_work)
    work = columns.device_work
    lost = launches.take(~np.isin(launches.correlation, columns.correlation[work.row]))
    if launches.name.where(lambda name: "Launch" in name).any() and not len(columns.kernels):
        yield Problem(
            "no-kernels",
            "kernels were launched but none was recorded: another tool may hold the counters",
            "the device looks idle although it worked",
            "end other profilers (ncu, DCGM), and record ProfilerActivity.CUDA",
            len(launches),
        )
    elif len(lost):
        yield Problem(
            "dropped",
            f"{len(lost)} of {len(launches)} calls that put work on the device left no record there: {_most(lost)}",
            "the device looks less busy than it was",
            "record fewer steps, synchronise before the profiler stops, and end other profilers",
            len(lost),
        )
    if len(work) and not trace.devices:
        yield Problem(
            "no-device",
            "the trace does not say on which device it was recorded: deviceProperties are missing",
            "no roof can be chosen for it",
            "note the device beside the trace",
        )


def _ids(trace: "Trace", columns: Columns) -> Iterator[Problem]:
    kernels = columns.kernels
    if without := int((kernels.correlation == 0).sum()):
        yield Problem(
            "no-correlation",
            f"{without} of {len(kernels)} kernels have no correlation",
            "their launches cannot be found, nor what they waited for",
            "see the unjoined kernels of helpers.profiling.joins",
            without,
        )
    if without := int((kernels.external_id == 0).sum()):
        yield Problem(
            "no-external-id",
            f"{without} of {len(kernels)} kernels have no External id",
            "a join by that id alone loses them",
            "join through the launch: helpers.profiling.joins",
            without,
        )
    wrong = int(((kernels.external_id != 0) & (fitting_ids(columns) == NONE)).sum())
    if wrong and len(columns.operators):
        yield Problem(
            "foreign-ids",
            f"{wrong} of {len(kernels)} kernels have an External id of no operator that was running at their launch",
            "a join by that id alone loses them, or gives them to an operator that has the number by chance",
            "join through the launch: helpers.profiling.joins",
            wrong,
        )


def _graphs(trace: "Trace", columns: Columns) -> Iterator[Problem]:
    graphs = columns.launches.take(columns.launches.name.where(lambda name: "GraphLaunch" in name))
    if len(graphs):
        held = int(np.isin(columns.kernels.correlation, graphs.correlation).sum())
        yield Problem(
            "cuda-graphs",
            f"{len(graphs)} CUDA graphs launched {held} kernels",
            "the operators that were captured are gone: kernels of a graph belong to no operator",
            "profile the same steps once without graphs to see which operator owns which kernel",
            len(graphs),
        )


def _clock(trace: "Trace", columns: Columns) -> Iterator[Problem]:
    work = columns.device_work
    launch, _ = match(columns.correlation[work.row], columns.launches.correlation)
    known = launch != NONE
    if early := int((work.start[known] < columns.launches.start[launch[known]]).sum()):
        yield Problem(
            "clocks",
            f"{early} of {len(work)} kernels and copies begin before the call that launched them",
            "the clocks of host and device disagree: waits between them are wrong by as much",
            "compare times on one side only",
            early,
        )


def _most(calls: Intervals) -> str:
    """`3 cudaMalloc, 1 cudaFree`, the three most frequent ones."""
    return ", ".join(f"{count} {name}" for name, count in Counter(calls.name.tolist()).most_common(3))
