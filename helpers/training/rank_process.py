"""What runs inside one rank: join the process group, then call the functions that arrive."""

import faulthandler
import inspect
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection

import cloudpickle

from helpers.training.flight import listen_for_dumps

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Setup:
    """What a rank is told first. `path`, `folder` and `environment` are those of the parent."""

    rank: int
    world: int
    device: str
    threads: int
    path: tuple[str, ...]
    folder: str
    environment: dict[str, str]


@dataclass(frozen=True)
class Frame:
    """One line of a traceback; the parent, which has the cells' source, adds the text."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class Failure:
    """An exception of a rank: its class, its message, and its frames, outermost first."""

    kind: str
    message: str
    frames: tuple[Frame, ...]


def serve_rank(commands: int, lifeline: int, out: int, err: int) -> int:
    """Run a rank on four file descriptors until it is told to close; returns its exit code."""
    _redirect(out, err)
    listen_for_dumps()
    threading.Thread(target=_exit_with_parent, args=(socket.socket(fileno=lifeline),), daemon=True).start()
    connection = Connection(commands)
    setup: Setup = pickle.loads(connection.recv_bytes())
    try:
        _join(setup, connection)
    except Exception as error:
        connection.send_bytes(_failure(error))
        return 1
    connection.send_bytes(pickle.dumps((None,)))
    _answer_calls(connection)
    return 0


def _redirect(out: int, err: int) -> None:
    """Send what Python and C++ print to the files of the parent; stacks on SIGUSR1 too."""
    os.dup2(out, 1)
    os.dup2(err, 2)
    sys.stdout.reconfigure(encoding="utf-8", errors="replace", line_buffering=True)
    sys.stderr.reconfigure(encoding="utf-8", errors="replace", line_buffering=True)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=False)


def _exit_with_parent(lifeline: socket.socket) -> None:
    """The parent holds the other end and never writes: an answer means that it is gone."""
    lifeline.recv(1)
    os._exit(1)


def _join(setup: Setup, connection: Connection) -> None:
    import torch
    import torch.distributed as dist

    os.chdir(setup.folder)
    sys.path[:] = setup.path
    os.environ.clear()
    os.environ.update(setup.environment)
    torch.set_num_threads(setup.threads)
    device = None
    if setup.device == "cuda":
        device = torch.device("cuda", setup.rank)
        torch.cuda.set_device(device)
    store = _meet(setup, connection)
    dist.init_process_group(
        "nccl" if device else "gloo",
        store=store,
        rank=setup.rank,
        world_size=setup.world,
        timeout=timedelta(hours=1),
        device_id=device,
    )


def _meet(setup: Setup, connection: Connection):
    """Rank 0 opens a store on a port that the system chooses, and the parent tells the others."""
    from torch.distributed import TCPStore

    if setup.rank == 0:
        store = TCPStore(LOOPBACK, 0, setup.world, is_master=True, wait_for_workers=False)
        connection.send_bytes(pickle.dumps((store.port,)))
    port = pickle.loads(connection.recv_bytes())
    os.environ |= {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port)}
    if setup.rank == 0:
        return store
    return TCPStore(LOOPBACK, port, setup.world, is_master=False)


def _answer_calls(connection: Connection) -> None:
    import torch.distributed as dist

    state: dict[str, object] = {}
    while True:
        try:
            call = connection.recv_bytes()
        except EOFError:
            return
        if not call:
            dist.destroy_process_group()
            return
        connection.send_bytes(_answer(call, state))


def _answer(call: bytes, state: dict[str, object]) -> bytes:
    """The pickled result of one call, or the `Failure` it ended in."""
    try:
        function, arguments = cloudpickle.loads(call)
        keywords = {"state": state} if wants_state(function) else {}
        result = function(*arguments, **keywords)
        sys.stdout.flush()
        return cloudpickle.dumps((result,))
    except BaseException as error:
        return _failure(error)


def wants_state(function) -> bool:
    """Whether `function` has a parameter called `state`."""
    try:
        return "state" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _failure(error: BaseException) -> bytes:
    frames = tuple(
        Frame(frame.filename, frame.lineno or 0, frame.name)
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__
    )
    return pickle.dumps(Failure(type(error).__name__, str(error), frames))
