"""Other people's runtimes against NumPy in float64, where they are installed, and what is said where they are not."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.edge import decode_reference as reference
from helpers.edge.decode import DecodeError, DecoderConfig, parameter_shapes, rotary_table, serving_tensors
from helpers.edge.runtimes import (
    RUNTIMES,
    ExportedOnly,
    NotInstalled,
    Runtime,
    RuntimesError,
    Session,
    Unsupported,
    Verdict,
    bytes_per_token,
    examine,
    llama_cpp,
    read_recorded,
    seconds_per_token,
    some_tokens,
    torch_eager,
)
from helpers.edge.runtimes.recorded import FILE, RecordingError, write_recorded
from helpers.edge.weights import write_weights
from helpers.measure import Origin

ROOT = Path(__file__).parents[2]
PLAIN = {"width": 40, "blocks": 2, "heads": 4, "kv_heads": 4, "context": 24, "ffn_width": 160, "vocab": 256}
SHAPES = {
    "plain": {"gated": False, "rotary": False},
    "rotary": {"gated": False, "rotary": True},
    "llama": {"gated": True, "rotary": True, "kv_heads": 2},
    "odd": {
        "gated": True,
        "rotary": True,
        "kv_heads": 1,
        "ffn_width": 110,
        "vocab": 97,
        "blocks": 3,
        "epsilon": 1e-5,
    },
}
EXPORTED = [runtime for runtime in RUNTIMES if runtime.name in ("ExecuTorch, Vulkan", "ExecuTorch, Core ML")]
UNREADABLE = [runtime for runtime in RUNTIMES if runtime.name == "IREE, Vulkan"]
RUN = [runtime for runtime in RUNTIMES if runtime not in EXPORTED + UNREADABLE]


def case(shape, seed=0):
    """A config, parameters that no two runtimes could confuse, tokens, and their logits in float64."""
    config, generator = DecoderConfig(**PLAIN | SHAPES[shape]), np.random.default_rng(seed)
    parameters = {}
    for name, size in parameter_shapes(config).items():
        values = generator.uniform(0.5, 1.5, size) if len(size) == 1 else generator.normal(size=size)
        scale = size[1] ** -0.5 if len(size) == 2 and "token" not in name and "position" not in name else 1
        parameters[name] = (values * scale).astype(np.float32)
    tokens = generator.integers(0, config.vocab, config.context).tolist()
    return config, parameters, tokens, reference.logits(config, parameters, tokens)


def opened(runtime, config, parameters):
    """A session; the test is skipped where the runtime is not installed or has no words for the model."""
    try:
        return runtime.serve(config, parameters)
    except (NotInstalled, Unsupported) as error:
        if runtime is torch_eager.RUNTIME:
            raise
        pytest.skip(f"{error.where}: {error.what}; {error.mend}")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("runtime", RUN, ids=lambda runtime: runtime.name)
def test_logits_are_those_of_float64(runtime, shape):
    config, parameters, tokens, truth = case(shape)
    session = opened(runtime, config, parameters)
    limit = reference.tolerance(config, truth)
    logits = session.logits(tokens)
    assert logits.dtype == np.float32 and logits.shape == truth.shape
    assert np.abs(logits - truth).max() <= limit
    session.rewind(20)  # what came after is not read, and is written over
    assert session.length == 20
    assert np.abs(session.step(tokens[20]) - truth[20]).max() <= limit
    session.close()


@pytest.mark.parametrize("runtime", EXPORTED, ids=lambda runtime: runtime.name)
def test_an_export_without_a_back_end_says_that_nothing_ran(runtime):
    config, parameters, tokens, _ = case("llama")
    found = examine(runtime, config, parameters, tokens)
    if found.verdict is Verdict.MISSING:
        pytest.skip(f"{runtime.name}: there is no module {runtime.missing}; {runtime.install}")
    if found.verdict is not Verdict.RAN:  # a package that was built with it runs it
        assert found.verdict is Verdict.EXPORTED
        assert re.search(
            r"a \.pte of \d+ bytes with the first block, all .* taken by \w+Backend; .*Xnnpack", found.why
        )


@pytest.mark.parametrize("runtime", UNREADABLE, ids=lambda runtime: runtime.name)
def test_what_cannot_be_read_back_has_no_logits(runtime):
    config, parameters, tokens, _ = case("llama")
    found = examine(runtime, config, parameters, tokens)
    if found.verdict is Verdict.MISSING:
        pytest.skip(f"{runtime.name}: there is no module {runtime.missing}; {runtime.install}")
    assert (found.verdict is Verdict.RAN) == (found.error is not None) == (found.why == "")


def test_the_oracle_is_not_what_torch_computes_from_other_parameters():
    config, parameters, tokens, truth = case("llama")
    for name in ("blocks.1.attention.key.weight", "blocks.0.ffn.gate.weight", "norm.weight"):
        wrong = {**parameters, name: np.roll(parameters[name], 3, axis=0)}
        logits = torch_eager.RUNTIME.serve(config, wrong).logits(tokens)
        assert np.abs(logits - truth).max() > 100 * reference.tolerance(config, truth)


@pytest.mark.parametrize("runtime", RUN, ids=lambda runtime: runtime.name)
def test_a_session_says_what_it_cannot_take(runtime):
    config, parameters, tokens, _ = case("llama")
    session = opened(runtime, config, parameters)
    for token in (-1, config.vocab):
        with pytest.raises(RuntimesError, match=f"use 0 to {config.vocab - 1}"):
            session.step(token)
    session.logits(tokens)
    with pytest.raises(RuntimesError, match="the context of 24 tokens is full"):
        session.step(0)
    for length in (-1, 25):
        with pytest.raises(RuntimesError, match="use 0 to 24"):
            session.rewind(length)
    session.close()
    with pytest.raises(DecodeError, match=r"head\.weight is missing"):
        runtime.serve(config, {name: value for name, value in parameters.items() if name != "head.weight"})


def test_timing_leaves_the_cache_as_it_was():
    config, parameters, tokens, _ = case("llama")
    session = torch_eager.RUNTIME.serve(config, parameters)
    session.logits(tokens[:9])
    expected = session.step(tokens[9])
    session.rewind(9)
    assert seconds_per_token(session, 5) > 0
    assert session.length == 9 and np.array_equal(session.step(tokens[9]), expected)


@pytest.fixture
def absent():
    return Runtime("Absent", ("no_such_runtime.core",), "no-such-runtime", "pip install no-such-runtime", None)


def test_what_is_not_installed_says_how_to_install_it(absent):
    config, parameters, tokens, _ = case("llama")
    with pytest.raises(NotInstalled, match=r"no module no_such_runtime\.core(.|\n)*pip install no-such-runtime"):
        absent.serve(config, parameters)
    found = examine(absent, config, parameters, tokens)
    assert (found.version, found.verdict, found.why) == ("", Verdict.MISSING, "pip install no-such-runtime")
    assert found.error is None and found.session is None


def test_a_package_without_its_library_counts_as_not_installed(absent, tmp_path, monkeypatch):
    Path(tmp_path, "half_a_runtime.py").write_text("raise ImportError('libhalf.so: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    half = replace(absent, modules=("half_a_runtime",))
    with pytest.raises(NotInstalled, match=r"does not import: libhalf\.so"):
        half.serve(*case("llama")[:2])


class Wrong(Session):
    """PyTorch's logits, spoilt by a function of the place."""

    def __init__(self, config, parameters, spoil):
        super().__init__(config)
        self.inner, self.spoil, self.closed = torch_eager.RUNTIME.serve(config, parameters), spoil, False

    def _step(self, token, place):
        self.inner.rewind(place)
        return self.spoil(self.inner.step(token), place)

    def close(self):
        self.closed = True


def only_at_nine(change):
    return lambda logits, place: change(logits) if place == 9 else logits


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda logits, place: logits, ""),
        (only_at_nine(lambda logits: np.roll(logits, 1)), "tolerances from float64"),
        (only_at_nine(lambda logits: logits * np.nan), "a logit is nan tolerances from float64"),
        (only_at_nine(lambda logits: 1 // 0), "ZeroDivisionError: integer division or modulo by zero"),
    ],
)
def test_what_a_runtime_returns_or_raises_becomes_a_verdict(absent, spoil, why):
    config, parameters, tokens, _ = case("llama")
    sessions = []

    def start(*model):
        sessions.append(Wrong(*model, spoil))
        return sessions[0]

    found = examine(replace(absent, modules=(), start=start), config, parameters, tokens)
    assert found.verdict == (Verdict.FAILED if why else Verdict.RAN) and why in found.why
    assert (found.session is None) == bool(why) == sessions[0].closed


def test_exported_only_is_a_verdict_of_its_own(absent):
    def start(*_):
        raise ExportedOnly("a file, and nothing that runs it")

    config, parameters, tokens, _ = case("llama")
    found = examine(replace(absent, modules=(), start=start), config, parameters, tokens)
    assert (found.verdict, found.why) == (Verdict.EXPORTED, "a file, and nothing that runs it")


def test_reordered_rows_turn_neighbours_as_the_model_turns_halves():
    """Scores of queries and keys, with the rotation as llama.cpp and as the model define it."""
    config, generator = DecoderConfig(**PLAIN | SHAPES["llama"]), np.random.default_rng(1)
    wq, wk = generator.normal(size=(2, config.head_width * 2, 7))
    x, turns = generator.normal(size=7), rotary_table(config).astype(float)[5]
    turn = turns[:, 0] + 1j * turns[:, 1]

    def halves(w):
        heads = (w @ x).reshape(2, 2, -1)
        return (heads[:, 0] + 1j * heads[:, 1]) * turn

    def neighbours(w):
        heads = (llama_cpp.interleaved(w, config.head_width) @ x).reshape(2, -1, 2)
        return (heads[..., 0] + 1j * heads[..., 1]) * turn

    scores = [(f(wq).conj() * f(wk)).real.sum(1) for f in (halves, neighbours)]
    np.testing.assert_allclose(*scores, rtol=1e-12)
    assert sorted(llama_cpp.interleaved(wq, config.head_width)[:, 0]) == sorted(wq[:, 0])


def test_a_gguf_file_holds_the_model(tmp_path):
    pytest.importorskip("gguf")
    from helpers.edge.gguf_model import read_gguf

    config, parameters, *_ = case("odd")
    found, arrays = read_gguf(llama_cpp.write_gguf(tmp_path / "m.gguf", config, parameters))
    assert replace(found, epsilon=config.epsilon) == config and found.epsilon == pytest.approx(config.epsilon)
    assert arrays.keys() == parameters.keys()
    assert all(np.array_equal(arrays[name], parameters[name]) for name in parameters)


@pytest.mark.parametrize("shape", ["plain", "rotary"])
def test_llama_cpp_has_no_words_for_a_model_without_gate_or_rotary_positions(tmp_path, shape):
    config, parameters, *_ = case(shape)
    with pytest.raises(Unsupported, match="gated=True and rotary=True"):
        llama_cpp.write_gguf(tmp_path / "m.gguf", config, parameters)


@pytest.mark.parametrize("shape", ["plain", "odd"])
def test_the_bytes_of_a_token_are_those_of_the_serving_file_and_the_cache(shape):
    config, parameters, *_ = case(shape)
    tables = {
        name: array for name, array in serving_tensors(config, parameters).items() if name in ("token", "position")
    }
    served = sum(array.nbytes for array in serving_tensors(config, parameters).values())
    rows = sum(4 * config.width - array.nbytes for array in tables.values())
    cache = 6 * 2 * config.blocks * config.kv_heads * config.head_width * 4
    assert bytes_per_token(config, parameters, 5) == served + rows + cache


def test_a_process_of_its_own_examines_and_times(tmp_path):
    config, parameters, *_ = case("llama")
    path = write_weights(tmp_path / "plain", config, parameters)
    command = [sys.executable, "-m", "helpers.edge.runtimes", str(path), "9", "PyTorch", "MLX"]
    done = subprocess.run(command, input="PyTorch\t3\n" * 2, capture_output=True, text=True, cwd=ROOT, check=True)
    findings, *seconds = map(json.loads, done.stdout.splitlines())
    assert [finding["runtime"] for finding in findings] == ["PyTorch", "MLX"]
    assert findings[0]["verdict"] == "ran here" and findings[0]["error"] <= 1
    assert len(seconds) == 2 and min(seconds) > 0
    here = examine(torch_eager.RUNTIME, config, parameters, some_tokens(config, 9))
    assert findings[0]["version"] == here.version


def test_import_costs_no_torch():
    program = "import sys, helpers.edge.runtimes; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_the_recorded_table_leaves_no_runtime_out():
    table = read_recorded()
    names = [line.runtime for line in table.lines]
    assert len(set(names)) == len(names)
    for runtime in RUNTIMES:
        assert any(name.startswith(runtime.name) for name in names), runtime.name
    assert table.load > 0 and table.roof > 0 and table.length < table.config.context
    for line in table.lines:
        if line.verdict is Verdict.RAN:
            assert line.error <= 1 and line.version
            assert table.rate(line).origin is Origin.RECORDED
            assert table.date in table.rate(line).stamp and line.version in table.rate(line).stamp
            assert table.share(line).value == pytest.approx(100 * table.rate(line).value * line.nbytes / table.roof)


def test_a_recorded_table_is_written_as_it_is_read(tmp_path):
    table = read_recorded()
    assert read_recorded(write_recorded(tmp_path / "again.json", table)) == table
    assert [path.name for path in tmp_path.iterdir()] == ["again.json"]


def damaged(change):
    table = json.loads(FILE.read_text(encoding="utf-8"))
    change(table)
    return json.dumps(table)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (lambda: "[", "JSONDecodeError"),
        (lambda: "[]", "cannot be read"),
        (lambda: damaged(lambda table: table.pop("load")), "load"),
        (lambda: damaged(lambda table: table.update(colour=1)), "colour"),
        (lambda: damaged(lambda table: table["lines"][0].update(verdict="ran")), "'ran' is not a valid Verdict"),
        (lambda: damaged(lambda table: table["lines"][0].update(seconds=None)), "record it again"),
        (lambda: damaged(lambda table: table["lines"][0].update(seconds=float("nan"))), "record it again"),
        (
            lambda: damaged(lambda table: table["lines"][0].update(verdict="exported only", why="")),
            "without a reason",
        ),
        (lambda: damaged(lambda table: table["config"].pop("width")), "width"),
    ],
)
def test_a_damaged_table_says_so(tmp_path, content, said):
    Path(tmp_path, "table.json").write_text(content(), encoding="utf-8")
    with pytest.raises((RecordingError, DecodeError), match=said):
        read_recorded(tmp_path / "table.json")


def test_a_table_that_is_not_there_says_how_to_make_one(tmp_path):
    with pytest.raises(RecordingError, match=r"benchmarks/decode\.py --save"):
        read_recorded(tmp_path / "none.json")
