"""What Inductor writes for a Mac: generated here, or read from the recorded dump, and right in either case."""

import json
import re

import numpy as np
import pytest
from metal_kit import needs_shim

from helpers.edge import bounds
from helpers.edge.metal import inductor
from helpers.edge.metal.inductor import InductorError

pytest.importorskip("torch")

X = np.random.default_rng(0).standard_normal((32, 100)).astype(np.float32)


def gelu(x):
    from math import erf

    return x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))


TRUTHS = {
    "softmax": lambda x: bounds.softmax(x),
    "rmsnorm": lambda x: bounds.rmsnorm(x, np.ones(x.shape[1]), 1e-6),
    "sum": lambda x: x.sum(axis=-1),
    "gelu": gelu,
}


@pytest.fixture
def without_torch(monkeypatch):
    def fail(*_):
        raise InductorError("Inductor failed: no such module")

    monkeypatch.setattr(inductor, "_generate", fail)


@needs_shim
@pytest.mark.parametrize("program", inductor.PROGRAMS)
def test_the_recorded_kernels_compute_the_program(without_torch, program):
    emission = inductor.emit(program)
    assert re.fullmatch(r"recorded: torch [\d.]+\S*, \d{4}-\d\d-\d\d", emission.source)
    assert emission.reason == "Inductor failed: no such module"
    truth = TRUTHS[program](X.astype(float))
    result, done = inductor.run(emission, X, truth.shape)
    # erf and exp of torch's headers are good to some 10 ulp; a row has 100 terms.
    assert np.allclose(result, truth, rtol=2e-6, atol=2e-6)
    assert "never compiled by Apple" in done.executed


@needs_shim
def test_generated_here():
    emission = inductor.emit("softmax", 8, 2000)
    if emission.reason:
        pytest.skip(f"nothing could be generated: {emission.reason}")
    assert emission.source.startswith("generated here by torch")
    (kernel,) = emission.kernels
    assert "threadgroup_max" in kernel.msl and kernel.threads == (8, 1024) and kernel.group_size == (1, 1024)
    x = np.random.default_rng(1).standard_normal((8, 2000)).astype(np.float32)
    result, _ = inductor.run(emission, x, x.shape)
    assert np.allclose(result, bounds.softmax(x), rtol=2e-6, atol=1e-8)


def test_what_cannot_be_had_is_named(without_torch, monkeypatch, tmp_path):
    with pytest.raises(InductorError, match="no program 'conv'"):
        inductor.emit("conv")
    with pytest.raises(InductorError, match=r"no dump of sum \(3, 3\) is recorded"):
        inductor.emit("sum", 3, 3)
    broken = tmp_path / "inductor.json"
    broken.write_text("{")
    monkeypatch.setattr(inductor, "RECORDING", broken)
    with pytest.raises(InductorError, match="cannot be read"):
        inductor.emit("sum")


def test_a_child_that_fails_is_a_reason(monkeypatch):
    monkeypatch.setitem(inductor.PROGRAMS, "sum", "x +")
    emission = inductor.emit("sum")
    assert "SyntaxError" in emission.reason and emission.source.startswith("recorded")


def test_a_wrapper_without_kernels_is_refused():
    made = {"program": "sum", "shape": [1, 1], "torch": "9"}
    with pytest.raises(InductorError, match="no Metal kernel"):
        inductor._read(made | {"wrapper": "pass"}, "generated")
    uncalled = "k = async_compile.metal('k', '''kernel void k() {}''', ['utils'])\n"
    with pytest.raises(InductorError, match="never calls k"):
        inductor._read(made | {"wrapper": uncalled}, "generated")


def test_the_dump_names_no_folder():
    dump = inductor.RECORDING.read_text()
    assert {one["program"] for one in json.loads(dump)} == set(inductor.PROGRAMS)
    assert not re.search(r"/(?:home|root|tmp|work|Users)\b", dump)
