"""The arguments of a call, as torch.mps takes them, and whether they fit the kernel."""

from dataclasses import dataclass

import numpy as np

from helpers.edge.metal.errors import ArgumentsError
from helpers.edge.metal.text import KernelText, Parameter

MOST_THREADS = 1024
MOST_BUFFERS = 31
# torch's casts of Python numbers: torch/csrc/mps/Module.cpp, OptionalArgCaster. Without one, a float becomes
# fp32 and an int becomes int64.
CASTS = {"fp16": np.float16, "int32": np.int32, "int16": np.int16, "int8": np.int8, "uint8": np.uint8}


@dataclass(frozen=True)
class Argument:
    """One argument of a call. array: what the kernel sees. element: bytes that are tracked as one."""

    array: np.ndarray
    from_host: bool

    @staticmethod
    def of(value, place: int, casts: str | dict[int, str] | None) -> "Argument":
        """A Python value as torch passes it. Raises `ArgumentsError` for what torch would not take, or garble."""
        if isinstance(value, bytes):
            return Argument(np.frombuffer(value, np.uint8), False)
        if isinstance(value, (bool, int, float, tuple, list)):
            return Argument(_numbers(value, place, casts), False)
        try:
            array = np.asarray(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ArgumentsError(f"argument {place} is no array: {error}", mend="pass a NumPy array") from None
        if array.dtype == object:
            raise ArgumentsError(f"argument {place} is a {type(value).__name__}", mend="pass an array or a number")
        if not array.flags.c_contiguous:
            raise ArgumentsError(
                f"argument {place} is not contiguous, and a kernel sees memory, not strides",
                where=f"shape {array.shape}, strides {array.strides}",
                mend="pass numpy.ascontiguousarray(x), and copy the result back",
            )
        return Argument(array, True)

    @property
    def element(self) -> int:
        """Bytes of the smallest piece that two threads may share without a race."""
        size = self.array.dtype.itemsize
        return min(4, size & -size) or 1


def _numbers(value, place: int, casts: str | dict[int, str] | None) -> np.ndarray:
    values = list(value) if isinstance(value, (tuple, list)) else [value]
    if not values or not all(isinstance(one, (bool, int, float)) for one in values):
        raise ArgumentsError(f"argument {place} is {value!r}", mend="pass a number, or a tuple of numbers")
    cast = casts.get(place, "") if isinstance(casts, dict) else casts or ""
    if cast and cast not in CASTS:
        raise ArgumentsError(f"the cast {cast!r} of argument {place}", mend=f"use one of {', '.join(CASTS)}")
    kind = CASTS.get(cast, np.float32 if isinstance(values[0], float) else np.int64)
    try:
        return np.array(values).astype(kind)
    except OverflowError:
        raise ArgumentsError(f"argument {place} is {value!r}", mend="pass numbers that fit 64 bits") from None


def require_fit(text: KernelText, passed: list[Argument]) -> None:
    """Raise `ArgumentsError` when the arguments do not fit the kernel's parameters."""
    parameters = text.arguments
    numbers = [parameter.buffer for parameter in parameters]
    if len(passed) != len(parameters) or numbers != list(range(len(numbers))):
        wanted = ", ".join(f"{p.buffer}: {p.name}" for p in parameters) or "none"
        raise ArgumentsError(
            f"{len(passed)} arguments for {len(parameters)} buffers",
            where=f"kernel {text.name}",
            mend=f"pass {wanted}",
        )
    if len(passed) > MOST_BUFFERS:
        raise ArgumentsError(
            f"{len(passed)} buffers", where=f"kernel {text.name}", mend=f"use {MOST_BUFFERS} at most"
        )
    for parameter, argument in zip(parameters, passed):
        _require_type(text, parameter, argument)
    arrays = [argument.array for argument in passed if argument.from_host]
    for place, one in enumerate(arrays):
        for other in arrays[place + 1 :]:
            same = one.ctypes.data == other.ctypes.data and one.nbytes == other.nbytes
            if not same and np.may_share_memory(one, other):
                raise ArgumentsError("two arguments overlap", where=f"kernel {text.name}", mend="pass a copy of one")


def _require_type(text: KernelText, parameter: Parameter, argument: Argument) -> None:
    wanted, got = parameter.element, argument.array.dtype
    where = f"kernel {text.name}, parameter {parameter.name}"
    if argument.from_host and parameter.writable and not argument.array.flags.writeable:
        raise ArgumentsError("the kernel may write to an array that is read-only", where=where, mend="pass a copy")
    if not wanted or got.names or (argument.from_host and got.kind == "u"):
        return
    if not argument.from_host and got == np.uint8:
        return
    number = not argument.from_host
    # An int64 read as a shorter integer gives its low bytes, which is what torch's callers rely on.
    integers = got.kind == "i" and np.dtype(wanted if wanted != "bfloat16" else "f4").kind in "iub"
    if got.name == wanted or (number and integers):
        return
    raise ArgumentsError(
        f"{'a number passed as' if number else 'an array of'} {got.name} where the kernel reads {parameter.type}",
        where=where,
        mend="pass a float, or use arg_casts" if number else f"pass {wanted}, or its bits as unsigned integers",
    )


def grid_of(threads, group_size, passed: list[Argument]) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Threads and threads of a threadgroup, (x, y, z), with torch's defaults. Raises `ArgumentsError`."""
    if threads is None:
        arrays = [argument.array for argument in passed if argument.from_host]
        if not arrays:
            raise ArgumentsError("no array says how many threads to run", mend="pass threads=…")
        threads = arrays[0].size
    grid = _counts(threads, "threads")
    group = _counts(group_size, "group_size") if group_size is not None else (min(grid[0], MOST_THREADS),)
    if group_size is not None and len(group) != len(grid):
        raise ArgumentsError(f"{len(grid)} counts of threads and {len(group)} of group_size", mend="use as many")
    grid, group = ((*counts, 1, 1)[:3] for counts in (grid, group))
    size = group[0] * group[1] * group[2]
    if size > MOST_THREADS:
        raise ArgumentsError(f"a threadgroup of {group} has {size} threads", mend=f"use {MOST_THREADS} at most")
    if grid[0] * grid[1] * grid[2] >= 2**32 - 1:
        raise ArgumentsError(f"a grid of {grid} threads", mend="use fewer than 2³² threads")
    return grid, group


def _counts(given, name: str) -> tuple[int, ...]:
    counts = tuple(given) if isinstance(given, (tuple, list, np.ndarray)) else (given,)
    good = 0 < len(counts) < 4 and all(isinstance(c, (int, np.integer)) and c > 0 for c in counts)
    if not good:
        raise ArgumentsError(f"{name}={given!r}", mend="use one to three positive counts")
    return tuple(int(c) for c in counts)
