"""The weights file: what is written comes back from mapped pages, and what is broken is named."""

import hashlib
import json
import random
import struct
from pathlib import Path

import numpy as np
import pytest

from helpers.edge.kernels import Quantised, quantise
from helpers.edge.weights import (
    DTYPES,
    MAGIC,
    PAGE,
    START,
    CutFile,
    DamagedFile,
    ForeignFile,
    WeightsError,
    open_weights,
    write_weights,
)

CONFIG = {"width": 8, "gated": True, "base": 5e5, "name": "tiny"}


def arrays():
    draw = np.random.default_rng(0)
    return {
        "half": draw.standard_normal((3, 5)).astype(np.float16),
        "whole": draw.standard_normal((70, 33)).astype(np.float32),
        "bytes": draw.integers(-128, 128, 17, dtype=np.int8),
        "scalar": np.array(3, np.int32),
        "packed": quantise(draw.standard_normal((6, 50)), 4, 16),
        "eight": quantise(draw.standard_normal((2, 9)), 8, 8),
    }


@pytest.fixture
def path(tmp_path):
    return write_weights(tmp_path / "tiny.weights", CONFIG, arrays())


def test_everything_comes_back(path):
    weights = open_weights(path)
    weights.verify()
    assert weights.config == CONFIG and sorted(weights) == sorted(arrays()) and len(weights) == 6
    for name, value in arrays().items():
        found = weights[name]
        if isinstance(value, Quantised):
            assert (found.bits, found.group, found.k) == (value.bits, value.group, value.k)
            assert np.array_equal(found.values(), value.values())
        else:
            assert found.dtype == value.dtype and np.array_equal(found, value)
    with pytest.raises(KeyError):
        weights["packed.words"]
    assert weights.nbytes == sum(value.nbytes for value in arrays().values())


def test_arrays_are_pages_of_the_file(path):
    weights = open_weights(path)
    content = path.read_bytes()
    for array in (weights["whole"], weights["packed"].words, weights["packed"].scales):
        assert array.ctypes.data % PAGE == 0 and not array.flags.writeable and not array.flags.owndata
        place = content.index(array.tobytes())
        assert place % PAGE == 0
    assert len(content) % PAGE == 0
    with pytest.raises(ValueError, match="read-only"):
        weights["whole"][0] = 1


def test_arrays_outlive_the_file_and_the_object(path):
    array = open_weights(path)["whole"]
    path.unlink()
    assert np.array_equal(array, arrays()["whole"])


def test_no_array_is_read_when_a_file_is_opened(tmp_path):
    memory = Path("/proc/self/statm")
    if not memory.exists():
        pytest.skip("no /proc here to ask for the resident memory")
    resident = lambda: int(memory.read_text().split()[1]) * PAGE
    size = 64 * 2**20
    path = write_weights(tmp_path / "large", {}, {"zeros": np.zeros(size // 4, np.float32)})
    before = resident()
    weights = open_weights(path)
    array = weights["zeros"]
    assert resident() - before < size // 4
    assert array[-1] == 0


def test_every_cut_is_named(path, tmp_path):
    content = path.read_bytes()
    broken = tmp_path / "broken"
    header = struct.unpack_from("<I", content, 12)[0] + START.size
    places = {0, 1, 7, 8, 20, START.size - 1, START.size, header - 1, header, header + 1, len(content) - 1}
    for place in places | {random.Random(0).randrange(len(content)) for _ in range(50)}:
        broken.write_bytes(content[:place])
        with pytest.raises(CutFile if place else ForeignFile) as caught:
            open_weights(broken)
        assert caught.value.where == "broken" and caught.value.mend


def test_every_changed_byte_is_found(path, tmp_path):
    content, weights = path.read_bytes(), open_weights(path)
    header = struct.unpack_from("<I", content, 12)[0] + START.size
    used = [range(header)]
    for entry in weights._entries.values():
        used.append(range(header + entry.offset, header + entry.offset + entry.nbytes))
    draw, broken = random.Random(1), tmp_path / "broken"
    places = [draw.choice(part) for part in used for _ in range(40)] + list(range(START.size))
    for place in places:
        changed = bytearray(content)
        changed[place] ^= 1 << draw.randrange(8)
        broken.write_bytes(changed)
        with pytest.raises((DamagedFile, ForeignFile, CutFile)):
            open_weights(broken).verify()


def forge(path, header, total=None):
    """A file whose header is whatever, with a digest that fits."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text = text.ljust(-(-(len(text) + START.size) // PAGE) * PAGE - START.size)
    room = 2 * PAGE
    begin = START.pack(MAGIC, 1, len(text), START.size + len(text) + room, b"")[:-32]
    path.write_bytes(begin + hashlib.sha256(begin + text).digest() + text + bytes(room))


GOOD = {"dtype": "float32", "shape": [4], "offset": 0, "crc32": 0}
LAYOUT = {"bits": 4, "group": 8, "k": 8}
WORDS = {"dtype": "uint32", "shape": [1, 2], "offset": 0, "crc32": 0}


@pytest.mark.parametrize(
    "header",
    [
        b"not json",
        b"[" * 100_000,
        b"\xff\xfe",
        [],
        {"config": {}, "arrays": {}},
        {"config": 3, "arrays": {}, "quantised": {}},
        {"config": {}, "arrays": [], "quantised": {}},
        {"config": {}, "arrays": {"a": {**GOOD, "offset": 8}}, "quantised": {}},
        {"config": {}, "arrays": {"a": {**GOOD, "offset": -PAGE}}, "quantised": {}},
        {"config": {}, "arrays": {"a": {**GOOD, "offset": 2 * PAGE}}, "quantised": {}},
        {"config": {}, "arrays": {"a": {**GOOD, "offset": 0.0}}, "quantised": {}},
        {"config": {}, "arrays": {"a": {**GOOD, "shape": [2**62, 2**62]}}, "quantised": {}},
        {"config": {}, "arrays": {"a": {**GOOD, "shape": [-4]}}, "quantised": {}},
        {"config": {}, "arrays": {"a": {**GOOD, "shape": [True]}}, "quantised": {}},
        {"config": {}, "arrays": {"a": {**GOOD, "dtype": "object"}}, "quantised": {}},
        {"config": {}, "arrays": {"a": {**GOOD, "dtype": ["float32"]}}, "quantised": {}},
        {"config": {}, "arrays": {"a": None}, "quantised": {}},
        {"config": {}, "arrays": {"q.words": WORDS}, "quantised": {"q": LAYOUT}},
        {"config": {}, "arrays": {"q.words": WORDS, "q.scales": GOOD}, "quantised": {"q": LAYOUT}},
        {"config": {}, "arrays": {"q.words": WORDS, "q.scales": WORDS}, "quantised": {"q": {**LAYOUT, "bits": 3}}},
        {"config": {}, "arrays": {"q.words": WORDS, "q.scales": WORDS}, "quantised": {"q": {**LAYOUT, "k": 80}}},
        {"config": {}, "arrays": {"q.words": WORDS, "q.scales": WORDS}, "quantised": {"q": {**LAYOUT, "group": 0}}},
    ],
)
def test_a_header_that_others_wrote_is_not_trusted(tmp_path, header):
    forge(tmp_path / "forged", header)
    with pytest.raises(DamagedFile, match="does not describe arrays"):
        open_weights(tmp_path / "forged")


def test_a_forged_header_that_is_right_is_taken(tmp_path):
    arrays = {"a": GOOD, "q.words": WORDS, "q.scales": {**WORDS, "offset": PAGE}}
    forge(tmp_path / "forged", {"config": {}, "arrays": arrays, "quantised": {"q": LAYOUT}})
    assert sorted(open_weights(tmp_path / "forged")) == ["a", "q"]


def test_foreign_files_are_named(path, tmp_path):
    other = tmp_path / "other"
    for content, text in ((b"PK\x03\x04 a checkpoint", "starts with b'PK"), (b"", "is empty")):
        other.write_bytes(content)
        with pytest.raises(ForeignFile, match=text):
            open_weights(other)
    later = bytearray(path.read_bytes())
    later[8] = 9
    other.write_bytes(later)
    with pytest.raises(ForeignFile, match="version 9, here is 1"):
        open_weights(other)
    other.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(DamagedFile, match="bytes of"):
        open_weights(other)
    with pytest.raises(WeightsError, match="No such file"):
        open_weights(tmp_path / "absent")
    with pytest.raises(WeightsError, match="cannot be read"):
        open_weights(tmp_path)


def test_what_cannot_be_written_is_named(tmp_path):
    good = {"a": np.zeros(3, np.float32)}
    for config in ([], None, {"a": [1]}, {3: 1}, {"a": None}):
        with pytest.raises(WeightsError, match="no flat table"):
            write_weights(tmp_path / "w", config, good)
    for array in (np.zeros(0, np.float32), np.zeros(3, np.float64), np.array(["x"]), np.array([None])):
        with pytest.raises(WeightsError, match="a is "):
            write_weights(tmp_path / "w", {}, {"a": array})
    with pytest.raises(WeightsError, match="no arrays"):
        write_weights(tmp_path / "w", {}, {})
    with pytest.raises(WeightsError, match="no text, or there twice"):
        write_weights(tmp_path / "w", {}, {"q": quantise(np.ones((2, 8)), 4, 8), "q.words": good["a"]})
    with pytest.raises(WeightsError, match="no text, or there twice"):
        write_weights(tmp_path / "w", {}, {3: good["a"]})
    with pytest.raises(WeightsError, match="cannot be written"):
        write_weights(tmp_path / "absent" / "w", {}, good)
    assert list(tmp_path.iterdir()) == []


def test_many_arrays_and_any_order_of_bytes(tmp_path):
    found = {f"block {n}": np.arange(n + 1, dtype=">f4") for n in range(300)}
    weights = open_weights(write_weights(tmp_path / "many", {}, found))
    weights.verify()
    assert all(np.array_equal(weights[name], value) for name, value in found.items())
    for dtype in DTYPES:
        path = write_weights(tmp_path / dtype, {}, {"a": np.arange(6, dtype=dtype).reshape(2, 3).T})
        assert np.array_equal(open_weights(path)["a"], np.arange(6).reshape(2, 3).T)
