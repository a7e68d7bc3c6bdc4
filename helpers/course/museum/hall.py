"""Two ranks that run the scripts of the museum, and are replaced when a script breaks them."""

import atexit
import contextlib
import io
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from helpers.course.museum.bench import Build, Task, average, whole
from helpers.training.ranks import Ranks, RanksError

WORLD, DEADLINE_S, START_S = 2, 3.0, 120.0
HANG = re.compile(r"did not answer within")
DEATH = re.compile(r"was killed by|ended with exit code|closed its connection|raised RuntimeError: .*(gloo|preamble)")

Script = Callable[[Build, list, DeviceMesh], tuple]


@dataclass(frozen=True)
class Attempt:
    """What one rank has to show after a script.

    result: what the script returned, or a description when it is not `(losses, weights)`. started: a
    sum over the weights of each model as it was built. sharded: whether one of them is sharded now.
    computed: the dtypes in which the models computed. missing: what is not written yet, or ''.
    """

    result: object = None
    started: tuple[float, ...] = ()
    sharded: bool = False
    computed: frozenset[str] = frozenset()
    missing: str = ""


@dataclass(frozen=True)
class Visit:
    """A script on two ranks: how it ended (`returned`, `hangs` or `aborts`), the attempts of each rank by
    number of steps, and the message of the ranks when they did not return."""

    ending: str
    attempts: dict[int, tuple[Attempt, ...]] = field(default_factory=dict)
    message: str = ""


@dataclass(frozen=True)
class Call:
    """Work on two ranks: how it ended (`returned`, `hangs` or `aborts`), what each rank returned, and the
    message of the ranks when they did not return."""

    ending: str
    results: tuple = ()
    message: str = ""


def visit(script: Script, task: Task, seed: int, steps: tuple[int, ...], deadline_s: float = DEADLINE_S) -> Visit:
    """Run `script` on two ranks, once for each number of steps, with `deadline_s` seconds for each.

    Raises `RanksError` when it raises, and `NotImplementedError` when it does so on every rank.
    """
    attempts = {}
    for count in steps:
        call = on_ranks(_perform, script, task, seed, count, deadline_s=deadline_s)
        if call.ending != "returned":
            return Visit(call.ending, message=call.message)
        if all(attempt.missing for attempt in call.results):
            raise NotImplementedError(call.results[0].missing)
        attempts[count] = call.results
    return Visit("returned", attempts)


def on_ranks(work: Callable, *arguments, deadline_s: float = DEADLINE_S) -> Call:
    """Call `work(*arguments)` on the two ranks of the museum, which are replaced when it breaks them.

    The deadline counts when the ranks have read the arguments. What the ranks print is dropped.
    Raises `RanksError` when the work raises on a rank.
    """
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            pool = _pool()
            pool.run(_receive, arguments, deadline_s=START_S)
            return Call("returned", tuple(pool.run(work, *arguments, deadline_s=deadline_s)))
    except RanksError as error:
        return Call(_ending(error), message=str(error))


def _ending(error: RanksError) -> str:
    """`hangs` or `aborts`; an error of another kind is the script's own, and goes on."""
    if HANG.search(error.what):
        return "hangs"
    if DEATH.search(error.what):
        return "aborts"
    raise error


_open: list[Ranks] = []


def _pool() -> Ranks:
    """The ranks that still stand, or new ones that have already loaded and run everything once."""
    if _open and _open[0].pids:
        return _open[0]
    close()
    pool = Ranks(WORLD)
    pool.run(_perform, _warm_up, Task(), 0, 1, deadline_s=START_S)
    _open.append(pool)
    return pool


@atexit.register
def close() -> None:
    """Let the ranks end; the next visit starts new ones."""
    while _open:
        _open.pop().close()


def _warm_up(build: Build, batches: list, mesh: DeviceMesh) -> tuple:
    model = fully_shard(build(), mesh=mesh)
    loss = model(batches[0][0]).sum()
    loss.backward()
    return [average(loss)], whole(model)


def _receive(arguments: tuple) -> None:
    """Nothing: a rank that got a script has imported what the script needs, before its time counts."""


def _perform(script: Script, task: Task, seed: int, steps: int, state: dict) -> Attempt:
    """One rank: run the script on a fresh model and fresh data."""
    if "mesh" not in state:
        state["mesh"] = init_device_mesh("cpu", (WORLD,))
    mesh = state["mesh"]
    build, dtypes = Build(task, seed), set()
    spy = lambda module, inputs, output: dtypes.add(str(output.dtype).removeprefix("torch."))
    torch.use_deterministic_algorithms(True, warn_only=True)  # so that memory which nobody initialised holds NaN
    hook = torch.nn.modules.module.register_module_forward_hook(spy)
    try:
        result = script(build, task.batches(seed, steps), mesh)
    except NotImplementedError as error:
        return Attempt(missing=str(error) or "not written yet")
    finally:
        hook.remove()
        torch.use_deterministic_algorithms(False)
    sharded = any(isinstance(model, FSDPModule) for model in build.models)
    return Attempt(_portable(result), tuple(build.first_weights), sharded, frozenset(dtypes))


def _portable(result: object) -> object:
    """The result without parts that belong to a process group, which cannot leave their rank."""
    if isinstance(result, DTensor):
        return "a DTensor"
    if isinstance(result, torch.Tensor):
        return result.detach().clone()
    if isinstance(result, dict):
        return {key: _portable(value) for key, value in result.items()}
    if isinstance(result, list | tuple):
        return type(result)(_portable(value) for value in result)
    return result if isinstance(result, int | float | str | type(None)) else f"a {type(result).__name__}"
