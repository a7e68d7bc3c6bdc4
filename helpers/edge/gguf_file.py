"""GGUF, the container of llama.cpp: the metadata and the tensors of one file, which is mapped, not read.

Layout, little-endian (ggml, docs/gguf.md): `MAGIC`, the version (uint32), how many tensors and how many
entries of metadata (uint64 each), the entries, a description of each tensor, and from the next multiple of
the alignment on the tensors. A text is its length (uint64) and UTF-8. Dimensions come fastest first.
"""

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from helpers.errors import CourseError

MAGIC, VERSIONS, ALIGNMENT = b"GGUF", (2, 3), 32
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, ARRAY = 8, 9
MOST_AXES = 4
MEND_CUT = "fetch it again: it is not whole"
MEND_DAMAGED = "fetch it again: its bytes have changed"


class GgufError(CourseError):
    """A GGUF file that cannot be read."""


class ForeignGguf(GgufError):
    """A file of another format or version, or a model of another architecture."""


class CutGguf(GgufError):
    """A file that ends before its header or its tensors do."""


class DamagedGguf(GgufError):
    """A file whose header makes no sense."""


class IncompleteGguf(GgufError):
    """A file without the metadata or the tensors that its model needs."""


class NoGgufLibrary(GgufError):
    """A package that reads GGUF is not installed."""


@dataclass(frozen=True)
class GgufTensor:
    """A tensor as it is stored. kind: of ggml's types. shape: slowest first. content: its bytes."""

    kind: int
    shape: tuple[int, ...]
    content: np.ndarray


@dataclass(frozen=True)
class GgufFile:
    """A mapped file. metadata: numbers, texts, booleans and lists of them, by key. tensors: by name."""

    path: Path
    metadata: Mapping[str, object]
    tensors: Mapping[str, GgufTensor]

    def values(self, name: str) -> np.ndarray:
        """A tensor in fp32, of its shape. Raises `ForeignGguf` for a type that `gguf` cannot dequantise."""
        tensor, gguf = self.tensors[name], _library()
        kind = gguf.GGMLQuantizationType(tensor.kind)
        plain = {"F32": np.float32, "F16": np.float16}.get(kind.name)
        if plain:
            return tensor.content.view(plain).reshape(tensor.shape).astype(np.float32)
        rows = tensor.content.reshape(*tensor.shape[:-1], -1)
        try:
            return gguf.dequantize(rows, kind).reshape(tensor.shape)
        except NotImplementedError:
            raise ForeignGguf(
                f"{name} is {kind.name}", where=self.path.name, mend="use a file in a type that gguf dequantises"
            ) from None


def open_gguf(path: Path | str) -> GgufFile:
    """Map a file and read its header; tensors are read when they are asked for.

    Raises `ForeignGguf`, `CutGguf`, `DamagedGguf`, `GgufError` where there is no such file, and
    `NoGgufLibrary`: the sizes of ggml's types come from the `gguf` package.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            start = file.read(len(MAGIC))
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if start else b""
    except OSError as error:
        raise GgufError(f"cannot be read: {error.strerror}", where=path.name, mend="check the path") from None
    if start != MAGIC:
        raise ForeignGguf(
            f"starts with {start!r}, not {MAGIC!r}" if start else "is empty",
            where=path.name,
            mend="open a .gguf file",
        )
    header = _Header(path, pages)
    header.take(len(MAGIC))
    version = header.number("I")
    if version not in VERSIONS:
        raise ForeignGguf(
            f"has version {version}, known are {' and '.join(map(str, VERSIONS))}",
            where=path.name,
            mend="convert the model again with a current llama.cpp",
        )
    count, entries = header.number("Q"), header.number("Q")
    metadata = dict(header.entry() for _ in range(entries))
    described = [header.tensor() for _ in range(count)]
    return GgufFile(path, metadata, _place(path, pages, metadata, described, header.place))


@dataclass
class _Header:
    """A place in the header that moves on with each read."""

    path: Path
    pages: "mmap.mmap | bytes"
    place: int = 0

    def take(self, count: int) -> int:
        """Move on; where the bytes begin."""
        begin = self.place
        if count > len(self.pages) - begin:
            raise CutGguf(
                f"ends after {len(self.pages)} bytes, within its header", where=self.path.name, mend=MEND_CUT
            )
        self.place = begin + count
        return begin

    def number(self, code: str) -> int | float | bool:
        """One number of a struct code."""
        return struct.unpack_from(f"<{code}", self.pages, self.take(struct.calcsize(f"<{code}")))[0]

    def text(self) -> str:
        """A length and as many bytes of UTF-8."""
        count = self.number("Q")
        begin = self.take(count)
        try:
            return self.pages[begin : begin + count].decode()
        except UnicodeDecodeError:
            raise self.damaged("a text that is no UTF-8") from None

    def entry(self) -> tuple[str, object]:
        """Key and value."""
        return self.text(), self.value(self.number("I"))

    def value(self, kind: int) -> object:
        """A number, a text, or a list of one of these."""
        if kind in NUMBERS:
            return self.number(NUMBERS[kind])
        if kind == TEXT:
            return self.text()
        if kind != ARRAY:
            raise self.damaged(f"metadata of type {kind}")
        kind, count = self.number("I"), self.number("Q")
        if kind == TEXT:
            return [self.text() for _ in range(count)]
        if kind not in NUMBERS:
            raise self.damaged(f"a list of type {kind}")
        dtype = np.dtype(f"<{NUMBERS[kind]}") if kind != 7 else np.dtype(bool)
        return np.frombuffer(self.pages, dtype, count, self.take(count * dtype.itemsize)).tolist()

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """(name, shape, type, offset)."""
        name, axes = self.text(), self.number("I")
        if not 1 <= axes <= MOST_AXES:
            raise self.damaged(f"{name} with {axes} axes")
        shape = tuple(self.number("Q") for _ in range(axes))[::-1]
        return name, shape, self.number("I"), self.number("Q")

    def damaged(self, what: str) -> DamagedGguf:
        """The error for a header that says what it cannot."""
        return DamagedGguf(f"has {what}", where=f"{self.path.name}, byte {self.place}", mend=MEND_DAMAGED)


def _place(path: Path, pages, metadata: dict, described: list, header_bytes: int) -> dict[str, GgufTensor]:
    """The tensors, where the descriptions say."""
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if type(alignment) is not int or alignment < 1:
        raise DamagedGguf(f"has an alignment of {alignment!r}", where=path.name, mend=MEND_DAMAGED)
    start = -(-header_bytes // alignment) * alignment
    tensors = {}
    for name, shape, kind, offset in described:
        nbytes = _nbytes(path, name, shape, kind)
        if name in tensors or offset % alignment:
            raise DamagedGguf(f"has {name} twice, or at {offset}", where=path.name, mend=MEND_DAMAGED)
        if start + offset + nbytes > len(pages):
            raise CutGguf(f"ends after {len(pages)} bytes, within {name}", where=path.name, mend=MEND_CUT)
        tensors[name] = GgufTensor(kind, shape, np.frombuffer(pages, np.uint8, nbytes, start + offset))
    return tensors


def _nbytes(path: Path, name: str, shape: tuple[int, ...], kind: int) -> int:
    """Bytes of a tensor, whose rows are whole blocks."""
    gguf = _library()
    try:
        values, nbytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
    except (ValueError, KeyError):
        raise ForeignGguf(
            f"{name} has the type {kind}, which gguf does not know", where=path.name, mend="update gguf"
        ) from None
    if min(shape) < 1 or shape[-1] % values:
        raise DamagedGguf(f"has {name} of shape {shape} in blocks of {values}", where=path.name, mend=MEND_DAMAGED)
    return math.prod(shape) // values * nbytes


def _library():
    try:
        import gguf
    except ImportError:
        raise NoGgufLibrary("the package gguf is not installed", mend="pip install gguf tokenizers") from None
    return gguf
