"""A process that has torch loaded and forks ranks on request, and the parent's side of it.

Forking the notebook's kernel would copy locks that its threads hold (a fork after one matmul
hangs), and a fresh interpreter for each rank would import torch each time. The server imports
torch once, starts no thread, computes nothing, and forks; it never sees `__main__`.

It speaks over a Unix socket, one request at a time. `fork` comes with four file descriptors
(commands, lifeline, stdout, stderr) and is answered with the new process id; `wait PID` is
answered with how that process ended, as `subprocess` counts (-9 is SIGKILL), or with `alive`.
"""

import importlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence

from helpers.errors import CourseError

PRELOAD = (
    "cloudpickle",
    "numpy",
    "psutil",
    "torch",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.distributed.tensor.debug",
    "torch.distributed.tensor.parallel",
)
PATIENCE_S = 2.0


class RankServerError(CourseError):
    """The server cannot start, or is gone."""


class RankServer:
    """The parent's side: starts the server, and ends it by closing the socket or by dying."""

    def __init__(self):
        self._owner, self._lock = os.getpid(), threading.Lock()
        self._control, far_end = socket.socketpair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        program = "import sys; sys.path[:] = sys.argv[2:]; from helpers.training.rank_server import main; main()"
        with far_end:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program, str(far_end.fileno()), *sys.path],
                pass_fds=[far_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        """Whether this process may ask: the server runs, and this is not a fork of its owner."""
        connected = self._control.fileno() >= 0
        return self._owner == os.getpid() and connected and self._process.poll() is None

    def fork(self, fds: list[int]) -> int:
        """Fork a rank on four file descriptors; returns its process id."""
        return int(self._ask("fork", fds))

    def wait(self, pid: int) -> int | None:
        """The exit code of a rank that ended, negative for a signal; None while it runs on."""
        answer = self._ask(f"wait {pid}")
        return None if answer == "alive" else int(answer)

    def _ask(self, request: str, fds: Sequence[int] = ()) -> str:
        try:
            with self._lock:
                socket.send_fds(self._control, [request.encode()], fds)
                answer = self._control.recv(256).decode()
        except OSError as error:
            raise self._gone(str(error)) from None
        except BaseException:
            self._control.close()  # the answer is still to come, and would be taken for the next one's
            raise
        if not answer:
            raise self._gone("it closed its socket")
        return answer

    def _gone(self, why: str) -> RankServerError:
        self._errors.seek(0)
        words = self._errors.read().decode(errors="replace").strip().splitlines()
        return RankServerError(
            f"the process that starts the ranks is gone: {words[-1] if words else why}",
            mend="check the free memory with helpers doctor, then start a new pool",
        )


_shared: list[RankServer] = []


def shared_server() -> RankServer:
    """The server of this process, started at the first call; a new one when it is gone."""
    if not (_shared and _shared[0].alive):
        _shared[:] = [RankServer()]
    return _shared[0]


def main() -> None:
    """The server: argument 1 is the inherited socket's file descriptor."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in PRELOAD:
        importlib.import_module(module)
    with socket.socket(fileno=int(sys.argv[1])) as control:
        _serve(control)


def _serve(control: socket.socket) -> None:
    """Answer requests until the other end is closed, which the parent's death does too."""
    while True:
        request, fds, _, _ = socket.recv_fds(control, 256, 4)
        if not request:
            return
        word, _, pid = request.decode().partition(" ")
        answer = _fork(control, fds) if word == "fork" else _wait(int(pid))
        control.sendall(answer.encode())


def _fork(control: socket.socket, fds: list[int]) -> str:
    pid = os.fork()
    if pid == 0:
        _become_rank(control, fds)
    for fd in fds:
        os.close(fd)
    return str(pid)


def _become_rank(control: socket.socket, fds: list[int]) -> None:
    code = 1
    try:
        control.close()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        from helpers.training.rank_process import serve_rank

        code = serve_rank(*fds)
    finally:
        os._exit(code)


def _wait(pid: int) -> str:
    limit = time.monotonic() + PATIENCE_S
    while time.monotonic() < limit:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return str(os.waitstatus_to_exitcode(status))
        time.sleep(0.005)
    return "alive"
