"""What a call of torch moves between memory and a cache, by a model of the cache: operator by operator."""

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

LINE = 256
NO_WORK = ("aten::empty", "aten::new_empty", "aten::set_")


@dataclass(frozen=True)
class Moved:
    """read and written: bytes that passed between memory and the cache. operators: that did work (no views)."""

    read: int
    written: int
    operators: int

    @property
    def bytes(self) -> int:
        """Both directions."""
        return self.read + self.written


class CacheModel(TorchDispatchMode):
    """Counts the traffic of every operator under it: a fully associative cache of `size` bytes that drops the oldest.

    Lines of 256 B. A line that is only written is not read first, and one of a tensor that was freed while it was
    in the cache is never written back. The model knows operators, not the loops inside of them.
    """

    def __init__(self, size: int):
        super().__init__()
        self.capacity = size // LINE
        self.read = self.written = self.operators = 0
        self._lines: OrderedDict[tuple[int, int], bool] = OrderedDict()  # (storage, line): is it to be written back
        self._numbers: dict[int, int] = {}
        self._count = 0

    @property
    def moved(self) -> Moved:
        """So far, with everything written back that is still to be."""
        return Moved(self.read, self.written + LINE * sum(self._lines.values()), self.operators)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        schema = func._schema
        if schema.name.startswith(NO_WORK) or _is_view(schema):
            return result
        self.operators += 1
        for argument, value in _bound(schema, args, kwargs):
            overwritten = argument.name == "out" or (argument.name == "self" and schema.name == "aten::copy_")
            if not (argument.alias_info and argument.alias_info.is_write and overwritten):
                self._touch(value, dirty=False)
        self._touch(result, dirty=True)
        return result

    def _touch(self, value: object, dirty: bool) -> None:
        for tensor in tree_leaves(value):
            if isinstance(tensor, Tensor) and tensor.numel():
                number = self._number(tensor.untyped_storage())
                for line in _lines_of(tensor):
                    self._use((number, line), dirty)

    def _number(self, storage: torch.UntypedStorage) -> int:
        """A number of its own for each block of memory, as addresses are used again."""
        address = storage.data_ptr()
        if address not in self._numbers:
            self._count += 1
            self._numbers[address] = self._count
            weakref.finalize(storage, self._forget, address, storage.nbytes())
        return self._numbers[address]

    def _forget(self, address: int, size: int) -> None:
        number = self._numbers.pop(address)
        for line in range(size // LINE + 1):
            self._lines.pop((number, line), None)

    def _use(self, line: tuple[int, int], dirty: bool) -> None:
        known = self._lines.pop(line, None)
        if known is None and not dirty:
            self.read += LINE
        self._lines[line] = bool(known) or dirty
        if len(self._lines) > self.capacity:
            _, was_dirty = self._lines.popitem(last=False)
            self.written += LINE * was_dirty


def _is_view(schema) -> bool:
    """Whether the operator's result only looks at its input's memory."""
    alias = schema.returns[0].alias_info if schema.returns else None
    return alias is not None and not alias.is_write


def _bound(schema, args: tuple, kwargs: dict) -> Iterator[tuple[object, object]]:
    for place, argument in enumerate(schema.arguments):
        if place < len(args):
            yield argument, args[place]
        elif argument.name in kwargs:
            yield argument, kwargs[argument.name]


def _lines_of(tensor: Tensor) -> Iterator[int]:
    """The lines that the tensor's elements lie in; of an unusual layout those from its first to its last element."""
    size = tensor.element_size()
    start = tensor.storage_offset() * size
    if tensor.dim() == 2 and tensor.stride(1) == 1 and tensor.stride(0) > tensor.shape[1]:
        for row in range(tensor.shape[0]):
            first = start + row * tensor.stride(0) * size
            yield from range(first // LINE, (first + tensor.shape[1] * size - 1) // LINE + 1)
        return
    span = 1 + sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride()))
    yield from range(start // LINE, (start + span * size - 1) // LINE + 1)


def moved_by(call: Callable[[], object], cache_bytes: int) -> Moved:
    """What `call()` moves with a cold cache of `cache_bytes`; torch runs it for real."""
    with torch.no_grad(), CacheModel(cache_bytes) as model:
        result = call()
    moved = model.moved
    del result  # not before: what it holds must reach memory
    return moved
