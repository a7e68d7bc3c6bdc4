"""The parent's side of one rank: its socket, its output, and its end."""

import contextlib
import os
import pickle
import signal
import socket
import tempfile
import time
from multiprocessing.connection import Connection, wait

from helpers.training.flight import Flight, read_flights
from helpers.training.rank_process import Failure
from helpers.training.rank_report import Ending, Story, frames_of_stack
from helpers.training.rank_server import RankServer, RankServerError


class Member:
    """One rank as its parent sees it.

    A rank prints into files without a name, so what it wrote can be read even when it is dead.
    """

    def __init__(self, rank: int, server: RankServer, lifeline: socket.socket):
        self.rank, self._server = rank, server
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        self._printed, self._asked, self._ended = 0, 0, False
        near, far = socket.socketpair()
        with far:
            self.pid = server.fork([far.fileno(), lifeline.fileno(), self._out.fileno(), self._err.fileno()])
        self.connection = Connection(near.detach())

    def send(self, message: bytes) -> None:
        """Send to the rank; one that is gone shows when its answer is awaited."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send_bytes(message)

    def receive(self) -> Story:
        """What the rank answered, or how it died."""
        try:
            answer = self.connection.recv_bytes()
        except (EOFError, ConnectionResetError):
            return Story(self.rank, Ending.DIED, self._exit_code(), self._last_words())
        try:
            value = pickle.loads(answer)
        except Exception as error:
            return Story(self.rank, Ending.UNREADABLE, f"{type(error).__name__}: {error}")
        if isinstance(value, Failure):
            return Story(self.rank, Ending.RAISED, value)
        return Story(self.rank, Ending.RETURNED, value[0])

    def ask(self) -> None:
        """Ask a living rank for its Python stack and its flight recorder; it writes both to its stderr."""
        self._asked = os.fstat(self._err.fileno()).st_size
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def waiting(self) -> Story:
        """Where a rank is that did not answer, a moment after `ask`."""
        return Story(self.rank, Ending.WAITING, frames_of_stack(self._error_text(self._asked)), flight=self.flight())

    def flight(self) -> tuple[Flight, ...] | None:
        """The collectives that the rank called, a moment after `ask`."""
        return read_flights(self._error_text(self._asked))

    def new_output(self) -> str:
        """What the rank printed since the last call of this."""
        size = os.fstat(self._out.fileno()).st_size
        text = os.pread(self._out.fileno(), size - self._printed, self._printed)
        self._printed = size
        return text.decode("utf-8", errors="replace")

    def left_by(self, limit: float) -> bool:
        """Wait until the rank closed its socket, at most until `time.monotonic()` reads `limit`."""
        return bool(wait([self.connection], max(0.0, limit - time.monotonic())))

    def end(self) -> None:
        """Kill the rank unless it ended, wait for its end, and close what belongs to it."""
        if not self._ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            with contextlib.suppress(RankServerError):
                self._exit_code()
        for part in (self.connection, self._out, self._err):
            part.close()

    def _exit_code(self) -> int | None:
        code = self._server.wait(self.pid)
        self._ended = code is not None
        return code

    def _error_text(self, start: int) -> str:
        size = os.fstat(self._err.fileno()).st_size
        return os.pread(self._err.fileno(), size - start, start).decode("utf-8", errors="replace")

    def _last_words(self) -> str:
        lines = [line.strip() for line in self._error_text(0).splitlines() if line.strip()]
        return lines[-1] if lines else ""
