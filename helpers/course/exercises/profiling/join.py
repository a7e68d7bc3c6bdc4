"""Operators, kernels, counters: how a learner's join of a trace and a report is examined."""

import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from helpers.course.exercise import Exercise, Finding, Symptom
from helpers.course.exercises.deadline import TooLong, within
from helpers.profiling.counters.record import KernelRecord, Source

if TYPE_CHECKING:
    from helpers.profiling.trace import Trace

DEADLINE_S = 2.0
GRAPH = "cudaGraphLaunch"
LAUNCH = "cudaLaunchKernel"


@dataclass(frozen=True)
class Operator:
    """An operator that ran on a thread of the host from `start` to `end`, in nanoseconds."""

    name: str
    thread: int
    start: int
    end: int


@dataclass(frozen=True)
class Launch:
    """A call of the host that put work on the device. `correlation` stands again at what it launched."""

    call: str
    thread: int
    start: int
    correlation: int


@dataclass(frozen=True)
class Kernel:
    """A kernel on the device: its name as torch.profiler writes it, its grid, and when it began."""

    name: str
    grid: tuple[int, ...]
    correlation: int
    start: int


@dataclass(frozen=True)
class Program:
    """A trace, and a report of the same program.

    operators, launches, kernels: of the trace, each sorted by start. report: kernels with counters, in the order in
    which ncu profiled them, which is the order of their launches.
    """

    operators: tuple[Operator, ...]
    launches: tuple[Launch, ...]
    kernels: tuple[Kernel, ...]
    report: tuple[KernelRecord, ...]


Pairs = list[tuple[int | None, int | None]]
Join = Callable[[Program], Pairs]


def program_of(trace: "Trace", report: Sequence[KernelRecord]) -> Program:
    """The plain lists of a trace that was read, with a report."""
    columns = trace.columns
    calls, launches, kernels = columns.operators, columns.launches, columns.kernels
    found = [
        Operator(calls.name[at], int(calls.thread.codes[at]), int(calls.start[at]), int(calls.end[at]))
        for at in range(len(calls))
    ]
    launched = [
        Launch(launches.name[at], int(launches.thread.codes[at]), int(launches.start[at]), int(number))
        for at, number in enumerate(launches.correlation)
    ]
    ran = [
        Kernel(kernels.name[at], tuple(map(int, kernels.grid[at])), int(number), int(kernels.start[at]))
        for at, number in enumerate(kernels.correlation)
    ]
    return Program(_sorted(found), _sorted(launched), _sorted(ran), tuple(report))


def _sorted(events: Sequence) -> tuple:
    """By start; of operators that start together the outer one first."""
    return tuple(sorted(events, key=lambda one: (one.start, -getattr(one, "end", 0))))


@dataclass
class _Host:
    """A program while it is written: the clock of each thread, and what happened so far."""

    now: dict[int, int] = field(default_factory=dict)
    operators: list[Operator] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    owners: dict[Kernel, Operator | None] = field(default_factory=dict)
    order: list[Kernel] = field(default_factory=list)

    def run(self, path: tuple[str, ...], thread: int, kernels: tuple[tuple, ...], delay: int = 0) -> None:
        """Nested operators `path`; the innermost launches (name, grid) kernels, `delay` ns before they run."""
        start = max(self.now.values(), default=0) + 10
        begin = start + 2 * len(path)
        end = begin + 10 * len(kernels) + 2 * len(path) + 2
        nest = [Operator(name, thread, start + 2 * at, end - 2 * at) for at, name in enumerate(path)]
        self.operators += nest
        for at, (name, grid) in enumerate(kernels):
            self._launch(LAUNCH, thread, begin + 10 * at + 1, ((name, grid),), nest[-1] if nest else None, delay)
        self.now[thread] = end

    def beside(self, thread: int, name: str) -> None:
        """An operator without kernels on another thread, around the last launch, which began after that one's own."""
        last = self.launches[-1].start
        self.operators.append(Operator(name, thread, last - 4, last + 200))
        self.now[thread] = last + 200

    def replay(self, thread: int, kernels: tuple[tuple, ...]) -> None:
        """A CUDA graph inside an operator: one launch, several kernels, and no operator to blame."""
        start = max(self.now.values(), default=0) + 10
        self.operators.append(Operator("step", thread, start, start + 30))
        self._launch(GRAPH, thread, start + 5, kernels, None, 0)
        self.now[thread] = start + 30

    def _launch(self, call, thread, at, kernels, owner, delay) -> None:
        correlation = 7 + 3 * len(self.launches)
        self.launches.append(Launch(call, thread, at, correlation))
        for place, (name, grid) in enumerate(kernels):
            kernel = Kernel(name, grid, correlation, at + 40 + delay + 6 * place)
            self.kernels.append(kernel)
            self.order.append(kernel)
            self.owners[kernel] = owner


@dataclass(frozen=True)
class Case:
    """One program, what it tests, and its truth: (kernel, operator) of each record of the report."""

    what: str
    program: Program
    truth: tuple[tuple[int | None, int | None], ...]


def _case(what: str, host: _Host, word: str = "", skip: int = 0, count: int = 10**6, lost: int = -1) -> Case:
    """The report of `ncu -k word -s skip -c count`: kernels with `word` in their name, in the order of launches.

    lost: of this record of the report the trace has no kernel: the program chose another one when it was profiled.
    """
    operators, kernels = _sorted(host.operators), _sorted(host.kernels)
    chosen = [kernel for kernel in host.order if word in kernel.name][skip : skip + count]
    report, truth = [], []
    for place, kernel in enumerate(chosen):
        owner = host.owners[kernel]
        pair = (kernels.index(kernel), None if owner is None else operators.index(owner))
        truth.append((None, None) if place == lost else pair)
        report.append(_counted(kernel, OTHER if place == lost else kernel.name))
    program = Program(operators, _sorted(host.launches), kernels, tuple(report))
    return Case(what, program, tuple(truth))


def _counted(kernel: Kernel, name: str) -> KernelRecord:
    """The kernel as ncu names it, with one counter."""
    spelled = name.replace("(anonymous namespace)", "<unnamed>")
    spelled = spelled.replace("<4,", "<(int)4,").replace("<32>", "<(int)32>")
    source = Source("made.ncu-rep", "made for the exercise")
    return KernelRecord(spelled, grid=kernel.grid, metrics={"gpu__time_duration.sum": 1e-5}, source=source)


ADD = "void at::native::vectorized_elementwise_kernel<4, float>(int, float)"
NORM = "void at::native::(anonymous namespace)::layer_norm_kernel<float>(int)"
GEMM = "ampere_sgemm_128x64_nn"
SPLIT = "void splitKreduce_gemm_kernel<32>(float)"
COPY = "void copy_kernel(float)"
OTHER = "ampere_sgemm_32x32_sliced1x4_nn"


def _small(seed: int) -> list[Case]:
    """One difficulty after the other, the smallest first."""
    size = random.Random(seed).randint(2, 60)
    grid, add = (size, 1, 1), (ADD, (size, 1, 1))
    one, nested, backward, streams, bare, graph = (_Host() for _ in range(6))
    one.run(("aten::add",), 1, (add,))
    nested.run(("aten::linear", "aten::addmm"), 1, ((GEMM, (size, 2, 1)), (SPLIT, grid)))
    nested.run(("aten::layer_norm", "aten::native_layer_norm"), 1, ((NORM, (size + 1, 1, 1)),))
    backward.run(("MulBackward0", "aten::mul"), 2, ((COPY, grid),))
    backward.run(("MmBackward0", "aten::mm"), 2, ((GEMM, grid), (GEMM, (size, 3, 1))))
    backward.beside(1, "aten::zeros")
    for name, delay in (("aten::add", 500), ("aten::mul", 0), ("aten::sub", 0)):
        streams.run((name,), 1, (add,), delay)
    bare.run((), 1, ((COPY, grid),))
    bare.run(("aten::add",), 1, (add,))
    graph.run(("aten::add",), 1, (add,))
    graph.replay(1, ((GEMM, grid), (ADD, (size + 2, 1, 1))))
    return [
        _case("one operator, one kernel", one),
        _case("operators inside operators, and two spellings of a name", nested),
        _case("a thread for backward, and another one beside it", backward),
        _case("two streams: a kernel begins after one that was launched later", streams),
        _case("a launch outside of any operator", bare),
        _case("a CUDA graph", graph),
    ]


def _steps(seed: int) -> list[Case]:
    """Three equal steps of a model, and reports of parts of them."""
    chance, host = random.Random(seed), _Host()
    sizes = chance.sample(range(2, 90), 3)
    for _ in range(3):
        for layer, size in enumerate(sizes):
            products = ((GEMM, (size, 1, 1)), (SPLIT, (size, 1, 1)))
            host.run(("aten::linear", "aten::addmm"), 1, products, chance.choice((0, 90, 300)))
            host.run(("aten::layer_norm", "aten::native_layer_norm"), 1, ((NORM, (size, layer + 1, 1)),))
            host.run(("aten::add_",), 1, ((ADD, (size, 1, 1)),), chance.choice((0, 200)))
        host.run(("AddmmBackward0", "aten::mm"), 2, ((GEMM, (7, 7, 1)),))
    skip = chance.randint(1, 3)
    return [
        _case("three steps, all kernels", host),
        _case("only the first four GEMMs of three steps", host, "sgemm", 0, 4),
        _case(f"only GEMMs, {skip} of them skipped", host, "sgemm", skip, 8 - skip),
        _case("one kernel of the report is not in the trace", host, "gemm", 0, 6, chance.randint(0, 5)),
    ]


def cases(seed: int) -> tuple[Case, ...]:
    """All programs of one examination, the smallest first."""
    return (*_small(seed), *_steps(seed))


def examine_join(answer: Join, seed: int) -> Finding | None:
    """The first property that the joins of ten programs lack: form, then kernels, then operators."""
    tried = []
    for case in cases(seed):
        handed = deepcopy(case.program)
        try:
            got = within(DEADLINE_S, partial(answer, handed))
        except TooLong:
            rule = "Each record is placed once: the work does not explode."
            return Finding(rule, f"{case.what}: nothing after {DEADLINE_S:g} s", Symptom.HANGS, 4)
        if handed != case.program:
            return Finding("A trace and a report are read only.", f"{case.what}: changed", Symptom.INPUT_CHANGED, 1)
        tried.append((case, got))
    return next((found for judge in JUDGES for one in tried if (found := judge(*one))), None)


def _where(case: Case, place: int) -> str:
    record = case.program.report[place]
    return f"{case.what}, record {place} of {len(case.truth)} ({record.name[:40]}, grid {record.grid})"


def _form(case: Case, got: object) -> Finding | None:
    rule = "The answer is a list with a pair (kernel, operator) of indices or None for each record."
    if not isinstance(got, list | tuple):
        return Finding(rule, f"{case.what}: got a {type(got).__name__}", Symptom.TYPE, 1)
    if len(got) != len(case.truth):
        dropped = "No record is dropped: what joins to nothing is there, as (None, None)."
        saw = f"{case.what}: {len(got)} entries for {len(case.truth)} records"
        return Finding(dropped, saw, Symptom.SHAPE, 1)
    for place, pair in enumerate(got):
        if not isinstance(pair, tuple) or len(pair) != 2 or not all(map(_is_index, pair)):
            return Finding(rule, f"{_where(case, place)}: {str(pair)[:60]}", Symptom.TYPE, 1)
    steps = {None if None in (pair[0], true[0]) else pair[0] - true[0] for pair, true in zip(got, case.truth)}
    if steps in ({1}, {-1}):
        return Finding("Indices count from 0.", f"{_where(case, 0)}: kernels[{got[0][0]}]", Symptom.OFF_BY_ONE, 1)
    return _in_range(case, got)


def _is_index(value: object) -> bool:
    import operator

    if value is None:
        return True
    try:
        operator.index(value)
    except TypeError:
        return False
    return not isinstance(value, bool)


def _in_range(case: Case, got: Pairs) -> Finding | None:
    sides = (("kernels", case.program.kernels), ("operators", case.program.operators))
    for (place, pair), (side, (what, events)) in ((one, two) for one in enumerate(got) for two in enumerate(sides)):
        if pair[side] is not None and not 0 <= pair[side] < len(events):
            saw = f"{_where(case, place)}: {what}[{pair[side]}] of {len(events)}"
            return Finding("An index is one of the trace's lists.", saw, Symptom.OUT_OF_BOUNDS, 1)
    return None


def _kernels(case: Case, got: Pairs) -> Finding | None:
    """Each record has its own kernel, or none where the trace has none."""
    wrong = [at for at, (pair, truth) in enumerate(zip(got, case.truth)) if pair[0] != truth[0]]
    if not wrong:
        return None
    place, kernel = wrong[0], got[wrong[0]][0]
    saw = f"{_where(case, place)}: {'no kernel' if kernel is None else f'kernels[{kernel}]'}"
    taken = [pair[0] for pair in got if pair[0] is not None]
    if len(set(taken)) < len(taken):
        return Finding("Each kernel is joined once.", f"{saw}, which another record has too", Symptom.VALUE, 4)
    return Finding("A record goes to the launch that was profiled, by name, grid and order.", saw, Symptom.VALUE, 3)


def _operators(case: Case, got: Pairs) -> Finding | None:
    """Each kernel has the innermost operator that ran on the launching thread."""
    for place, (pair, truth) in enumerate(zip(got, case.truth)):
        if pair[1] == truth[1]:
            continue
        name = "no operator" if pair[1] is None else case.program.operators[pair[1]].name
        rule = "A kernel belongs to the innermost operator that ran at its launch, on its thread; a graph's to none."
        return Finding(rule, f"{_where(case, place)}: {name}", Symptom.VALUE, 2 if truth[1] is not None else 5)
    return None


JUDGES = (_form, _kernels, _operators)


EXERCISES = (
    Exercise(
        id="profiling.9",
        title="Join operators to kernels to counters",
        hints=(
            "Return one pair for each record of program.report, in its order: an index into program.kernels and "
            "one into program.operators, counted from 0, or None.",
            "A kernel and its launch share a correlation. The operator is on the launch's thread, has begun and "
            "has not ended at the launch; of several, the one that began last.",
            "ncu runs one kernel after the other, so the report is in the order of launches, while kernels begin "
            "in another order where there are two streams. same_kernel(one, other) forgives the two spellings of "
            "a name.",
            "The report is a part of the trace: of the kernels whose name and grid stand in the report, as many "
            "as it has, one after the other. Try each place where it could begin, and take the first that fits.",
            "A cudaGraphLaunch replays kernels that were captured earlier: no operator of this moment asked for "
            "them. They are joined to their counters all the same, in the order in which they ran.",
        ),
        examine=examine_join,
    ),
)
