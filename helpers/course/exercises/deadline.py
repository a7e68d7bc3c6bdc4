"""A deadline for an answer that may never come back."""

import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


class TooLong(Exception):
    """The answer did not come back in time."""


def within(seconds: float, work: Callable[[], Result]) -> Result:
    """What `work()` returns, or raises, within `seconds`; `TooLong` otherwise.

    It runs on a thread of its own. One that is late is asked to stop at its next line of Python, and
    never keeps the process alive.
    """
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # SystemExit too: it is the answer's, not the thread's
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        thread.join(seconds)
    finally:
        late = thread.is_alive()
        if late:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
    if late:
        raise TooLong
    if errors:
        raise errors[0]
    return results[0]
