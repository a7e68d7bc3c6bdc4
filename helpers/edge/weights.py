"""Weights in one file that is mapped, not read: each array starts at a page, so that a device can import it.

Layout, little-endian: `MAGIC` (8 bytes), the version (uint32), the bytes of the header (uint32), the bytes
of the file (uint64), the SHA-256 of the header (32 bytes), the header, then the arrays, each at a multiple of
`PAGE` and followed by zeros up to the next. The header is JSON: `config`, a flat table; `arrays`, by name,
with dtype, shape, offset and CRC-32; `quantised`, by name, with the layout of two such arrays. Nothing in it is
ever executed, unlike a pickle. Opening checks the header; `Weights.verify` reads all bytes and checks them.
"""

import hashlib
import json
import math
import mmap
import os
import struct
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path

import numpy as np

from helpers.edge.kernels.quantised import BITS, Quantised
from helpers.errors import CourseError

MAGIC, VERSION, PAGE = b"\x89S2SEDG\n", 1, 4096
START = struct.Struct("<8sIIQ32s")
DTYPES = ("float32", "float16", "int8", "uint8", "int32", "uint32")
MOST_HEADER_BYTES = 2**26
MEND_CUT = "copy or write it again: it is not whole"
MEND_DAMAGED = "copy or write it again: its bytes have changed"


class WeightsError(CourseError):
    """A weights file that cannot be written or read."""


class ForeignFile(WeightsError):
    """A file of another format or another version."""


class CutFile(WeightsError):
    """A file that ends before its header or its arrays do."""


class DamagedFile(WeightsError):
    """A file whose header or arrays are not what was written."""


@dataclass(frozen=True)
class _Entry:
    """One array. offset: from the end of the header, bytes. crc32: of the array's bytes."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    crc32: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class Weights(Mapping[str, "np.ndarray | Quantised"]):
    """A mapped weights file: names to arrays, or to `Quantised` matrices of two arrays.

    config: the flat table that was written. nbytes: of all arrays. The arrays are read-only and share the
    file's pages, which the system reads when they are touched and may drop again; they stay valid as long as
    one of them lives, also when the file is removed. Made by `open_weights`.
    """

    def __init__(self, path: Path, header: dict, content: np.ndarray, entries: dict[str, _Entry]):
        """content: the bytes behind the header."""
        self.path, self.config = path, header["config"]
        self._content, self._entries, self._layouts = content, entries, header["quantised"]
        self.nbytes = sum(entry.nbytes for entry in entries.values())
        parts = {f"{name}.{part}" for name in self._layouts for part in ("words", "scales")}
        self._names = tuple(sorted((entries.keys() - parts) | self._layouts.keys()))

    def __getitem__(self, name: str) -> "np.ndarray | Quantised":
        if name in self._layouts:
            layout = self._layouts[name]
            words, scales = (self._array(f"{name}.{part}") for part in ("words", "scales"))
            return Quantised(words, scales, layout["bits"], layout["group"], layout["k"])
        if name not in self._names:
            raise KeyError(name)
        return self._array(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def verify(self) -> None:
        """Read every byte; `DamagedFile` names the first array that is not what was written."""
        for name, entry in self._entries.items():
            if zlib.crc32(self._bytes(entry)) != entry.crc32:
                raise DamagedFile(
                    f"{name} has another CRC-32 than was written", where=self.path.name, mend=MEND_DAMAGED
                )

    def _array(self, name: str) -> np.ndarray:
        entry = self._entries[name]
        return self._bytes(entry).view(entry.dtype).reshape(entry.shape)

    def _bytes(self, entry: _Entry) -> np.ndarray:
        return self._content[entry.offset : entry.offset + entry.nbytes]


def write_weights(path: Path | str, config: object, tensors: Mapping[str, "np.ndarray | Quantised"]) -> Path:
    """Write `tensors` and a `config`, a dataclass or a flat table of numbers, texts and booleans; the path.

    The file appears whole or not at all. Raises `WeightsError` for an empty table, a name that is no text or
    given twice, or an array that is empty or of a dtype other than `DTYPES`.
    """
    path, table = Path(path), _flat(config)
    arrays, layouts = _split(tensors)
    header = _plan(table, arrays, layouts)
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
            _fill(file, header, arrays)
        os.replace(file.name, path)
    except OSError as error:
        raise WeightsError(
            f"cannot be written: {error}", where=path.name, mend="choose a folder with space"
        ) from None
    return path


def open_weights(path: Path | str) -> Weights:
    """Map a file and check its header; no array is read.

    Raises `ForeignFile`, `CutFile` or `DamagedFile`, and `WeightsError` where there is no such file.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(START.size)
            header_bytes, total, digest = _read_start(path, start, size)
            header = file.read(header_bytes)
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise WeightsError(f"cannot be read: {error.strerror}", where=path.name, mend="check the path") from None
    if hashlib.sha256(start[:-32] + header).digest() != digest:
        raise DamagedFile("the header has another SHA-256 than was written", where=path.name, mend=MEND_DAMAGED)
    table, entries = _read_header(path, header, total - START.size - header_bytes)
    return Weights(path, table, np.frombuffer(pages, np.uint8)[START.size + header_bytes :], entries)


def _flat(config: object) -> dict:
    table = asdict(config) if is_dataclass(config) and not isinstance(config, type) else config
    plain = (bool, int, float, str)
    if not isinstance(table, Mapping) or not all(
        isinstance(key, str) and isinstance(value, plain) for key, value in table.items()
    ):
        raise WeightsError(
            f"a config of {type(config).__name__} is no flat table",
            mend="use a dataclass or dict of numbers, texts and booleans",
        )
    return dict(table)


def _split(tensors: Mapping) -> tuple[dict[str, np.ndarray], dict[str, dict]]:
    """All arrays by name, and the layout of each quantised matrix."""
    arrays, layouts = {}, {}
    for name, value in tensors.items():
        if isinstance(value, Quantised):
            layouts[name] = {"bits": value.bits, "group": value.group, "k": value.k}
            found = {f"{name}.words": value.words, f"{name}.scales": value.scales}
        else:
            found = {name: value}
        for key, array in found.items():
            if not isinstance(key, str) or key in arrays or (key in tensors and key is not name):
                raise WeightsError(f"the name {key!r} is no text, or there twice", mend="name each array once")
            arrays[key] = _require_array(key, array)
    if not arrays:
        raise WeightsError("there are no arrays to write", mend="pass at least one")
    return arrays, layouts


def _require_array(name: str, value) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.name not in DTYPES or not array.size:
        raise WeightsError(
            f"{name} is {array.dtype} of shape {array.shape}",
            mend=f"use arrays that are not empty, of {', '.join(DTYPES)}",
        )
    return np.asarray(array, array.dtype.newbyteorder("<"), order="C")


def _plan(config: dict, arrays: dict[str, np.ndarray], layouts: dict) -> bytes:
    """The bytes up to the first array."""
    entries, place = {}, 0
    for name, array in arrays.items():
        entries[name] = asdict(
            _Entry(array.dtype.name, array.shape, place, zlib.crc32(array.reshape(-1).view(np.uint8)))
        )
        place += _pages(array.nbytes)
    table = {"config": config, "arrays": entries, "quantised": layouts}
    header = json.dumps(table, separators=(",", ":")).encode()
    header = header.ljust(_pages(START.size + len(header)) - START.size)
    begin = START.pack(MAGIC, VERSION, len(header), START.size + len(header) + place, b"")[:-32]
    return begin + hashlib.sha256(begin + header).digest() + header


def _fill(file, header: bytes, arrays: dict[str, np.ndarray]) -> None:
    file.write(header)
    for array in arrays.values():
        file.write(array.data)
        file.write(bytes(_pages(array.nbytes) - array.nbytes))


def _pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE


def _read_start(path: Path, start: bytes, size: int) -> tuple[int, int, bytes]:
    """(bytes of the header, bytes of the file, digest) from the first bytes."""
    if not MAGIC.startswith(start[: len(MAGIC)]) or not start:
        raise ForeignFile(
            f"starts with {start[:8]!r}, not {MAGIC!r}" if start else "is empty",
            where=path.name,
            mend="open a file that write_weights made",
        )
    if len(start) < START.size:
        raise CutFile(f"has {size} bytes, less than a start of {START.size}", where=path.name, mend=MEND_CUT)
    _, version, header_bytes, total, digest = START.unpack(start)
    if version != VERSION:
        raise ForeignFile(f"has version {version}, here is {VERSION}", where=path.name, mend="write it again")
    if header_bytes > MOST_HEADER_BYTES or (START.size + header_bytes) % PAGE:
        raise DamagedFile(f"says that its header has {header_bytes} bytes", where=path.name, mend=MEND_DAMAGED)
    if size != total:
        kind = CutFile if size < total else DamagedFile
        raise kind(f"has {size} bytes of {total}", where=path.name, mend=MEND_CUT)
    return header_bytes, total, digest


def _read_header(path: Path, header: bytes, room: int) -> tuple[dict, dict[str, _Entry]]:
    """What a header before `room` bytes of arrays says. Its digest fits, but anyone can compute one."""
    try:
        table = json.loads(header)
        config, layouts = dict(table["config"]), dict(table["quantised"])
        entries = {str(name): _entry(entry, room) for name, entry in table["arrays"].items()}
        for name, layout in layouts.items():
            _require_layout(layout, entries[f"{name}.words"], entries[f"{name}.scales"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedFile(
            f"the header does not describe arrays: {error}", where=path.name, mend="write it with write_weights"
        ) from None
    return {"config": config, "quantised": layouts}, entries


def _entry(table: dict, room: int) -> _Entry:
    dtype, offset, shape = table["dtype"], table["offset"], tuple(table["shape"])
    if dtype not in DTYPES or not all(type(n) is int and n > 0 for n in shape):
        raise ValueError(f"an array of {dtype} {shape}")
    entry = _Entry(dtype, shape, offset, table["crc32"])
    if type(offset) is not int or offset % PAGE or not 0 <= offset <= room - entry.nbytes:
        raise ValueError(f"an array at {offset} of {room} bytes")
    return entry


def _require_layout(layout: dict, words: _Entry, scales: _Entry) -> None:
    bits, group, k = layout["bits"], layout["group"], layout["k"]
    if bits not in BITS or not all(type(n) is int and n > 0 for n in (group, k)) or group % (32 // bits):
        raise ValueError(f"a layout {layout}")
    groups = -(-k // group)
    if len(words.shape) != 2 or words.dtype != "uint32" or scales.dtype != "uint32":
        raise ValueError(f"words of {words.dtype} {words.shape}")
    rows = words.shape[1]
    if words.shape != (groups * group * bits // 32, rows) or scales.shape != (groups, rows):
        raise ValueError(f"words {words.shape} and scales {scales.shape} for {layout}")
