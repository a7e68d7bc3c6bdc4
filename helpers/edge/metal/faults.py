"""From what the runtime reports of a fault to an error with its name, its line and its thread."""

import signal
from collections.abc import Callable
from dataclasses import dataclass

from helpers.edge.metal.arguments import Argument
from helpers.edge.metal.build import Program
from helpers.edge.metal.errors import (
    ArgumentsError,
    DataRace,
    Deadline,
    DivergentBarrier,
    KernelFault,
    MetalError,
    OutOfBounds,
    ShimUnavailable,
    ThreadgroupMemory,
    UninitialisedRead,
)
from helpers.edge.metal.text import KernelText

VERBS = {"read": "reads", "write": "writes"}


@dataclass(frozen=True)
class Call:
    """A call that went wrong. report: of the runtime. passed: the arguments. deadline_s: of the call."""

    report: dict
    program: Program
    text: KernelText
    passed: list[Argument]
    deadline_s: float

    @property
    def where(self) -> str:
        """The kernel, the line and the thread, as far as the report knows them."""
        line = self.report.get("line") or self.program.line_of(self.report.get("site", 0))
        thread = _thread(self.report["thread"]) if self.report.get("thread") else ""
        return "; ".join(filter(None, (f"kernel {self.text.name}", self.program.where(line), thread)))


def error_of(call: Call) -> MetalError:
    """The error for a report of the child process."""
    make = MAKERS.get(call.report["fault"], _died)
    return make(call)


def _out_of_bounds(call: Call) -> MetalError:
    report, mend = call.report, "guard it with a comparison, or run fewer threads"
    if report["memory"] == "device":
        name, size = call.text.arguments[report["area"]].name, call.passed[report["area"]].array.dtype.itemsize
    else:
        name, size = report["name"], report["bytes"]
    count, index = report["size"] // size, report["offset"] // size
    place = "lies before its first element" if index < 0 else f"has {count} elements of {size} bytes"
    return OutOfBounds(f"a {report['access']} of {name}[{index}], which {place}", where=call.where, mend=mend)


def _index(call: Call) -> MetalError:
    kind = call.report["type"].replace("'", "").replace("_Float16", "half")
    part = "the index" if kind.startswith("array") else "component"
    what = f"{part} {call.report['index']} of {'an' if part == 'the index' else 'a'} {kind}"
    return OutOfBounds(what, where=call.where, mend="keep the index below the size")


def _race(call: Call) -> MetalError:
    report, threadgroup = call.report, call.report["memory"] == "threadgroup"
    if threadgroup:
        element = f"byte {report['offset']} of {report['name']}"
    else:
        size = call.passed[report["area"]].array.dtype.itemsize
        element = f"{call.text.arguments[report['area']].name}[{report['offset'] // size}]"
    one, other = (tuple(report[key]["in_grid"]) for key in ("thread", "other"))
    line = call.program.where(call.program.line_of(report["other_site"])) or "another line"
    what = (
        f"thread {one} {VERBS[report['second']]} {element}, which thread {other} {VERBS[report['first']]} "
        f"at {line}, and nothing orders them"
    )
    mend = "no barrier reaches across threadgroups: use an atomic, or a second dispatch"
    if report["thread"]["group"] == report["other"]["group"]:
        flag = "mem_threadgroup" if threadgroup else "mem_device"
        mend = f"put threadgroup_barrier(mem_flags::{flag}) between them, or let one thread do both"
    return DataRace(what, where=call.where, mend=mend)


def _uninitialised(call: Call) -> MetalError:
    what = f"a read of byte {call.report['offset']} of {call.report['name']}, which no thread has written yet"
    mend = "let the threads of the threadgroup write every element and wait at a barrier before they read"
    return UninitialisedRead(what, where=call.where, mend=mend)


def _divergent(call: Call) -> MetalError:
    report = call.report
    waiting, ended, elsewhere = report["waiting"]
    parts = [f"{waiting} threads wait at the {report['what']}"]
    if ended:
        parts.append(f"{ended} have ended, as thread {tuple(report['ended']['in_grid'])}")
    if elsewhere:
        line = call.program.where(report["elsewhere_line"])
        parts.append(f"{elsewhere} wait elsewhere, as thread {tuple(report['elsewhere']['in_grid'])} at {line}")
    if len(parts) == 1:
        parts.append("and the simdgroup is not full")
    mend = "let every thread reach it: put the guard around the work only, and dispatch whole simdgroups"
    return DivergentBarrier(", ".join(parts), where=call.where, mend=mend)


def _argument(call: Call) -> MetalError:
    name = call.text.arguments[call.report["buffer"]].name
    what = f"{name} takes {call.report['needs']} bytes and was given {call.report['has']}"
    return ArgumentsError(what, where=f"kernel {call.text.name}", mend="pass as many bytes as the type has")


def _threadgroup_memory(call: Call) -> MetalError:
    what = f"{call.report['bytes']} bytes of threadgroup memory, with {call.report['name']}"
    mend = f"stay within {call.report['limit']} bytes"
    return ThreadgroupMemory(what, where=f"kernel {call.text.name}", mend=mend)


def _deadline(call: Call) -> MetalError:
    what = f"the kernel did not end within {call.deadline_s:g} s"
    return Deadline(what, where=call.where, mend="look for a loop whose condition never turns false")


def _died(call: Call) -> MetalError:
    number = call.report.get("signal", 0)
    name = signal.Signals(number).name if number in list(signal.Signals) else f"status {number}"
    return KernelFault(f"the kernel died: {name}", where=call.where, mend="look at its pointers and casts")


def _fixed(kind: type[MetalError], what: str, mend: str) -> Callable[[Call], MetalError]:
    """An error whose words need nothing but what the report says under `what`."""
    return lambda call: kind(what.format(**call.report), where=call.where, mend=mend)


def _thread(place: dict) -> str:
    grid, in_group, group = (tuple(place[key]) for key in ("in_grid", "in_group", "group"))
    return f"thread {grid}, which is {in_group} of threadgroup {group}"


MAKERS: dict[str, Callable[[Call], MetalError]] = {
    "out_of_bounds": _out_of_bounds,
    "index": _index,
    "race": _race,
    "uninitialised": _uninitialised,
    "divergent": _divergent,
    "argument": _argument,
    "threadgroup_memory": _threadgroup_memory,
    "deadline": _deadline,
    "division": _fixed(KernelFault, "an integer is divided by zero", "guard the divisor: a GPU gives anything"),
    "stack": _fixed(KernelFault, "a thread's stack is full", "use smaller arrays in functions, and no recursion"),
    "wild": _fixed(KernelFault, "a {access} through a pointer to nothing", "set the pointer before its use"),
    "misuse": _fixed(KernelFault, "{what}", "see the Metal Shading Language specification"),
    "order": _fixed(
        KernelFault,
        "lanes of a simdgroup wait in {functions[0]} and in {functions[1]}, and the stand-in cannot tell the order",
        "let the lanes meet before they call functions across lanes",
    ),
    "host": _fixed(ShimUnavailable, "{what}", "free memory, or use smaller arrays"),
}
