"""The served model against NumPy in float64 and against PyTorch, for each shape of model and each precision."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from helpers.edge import decode_reference as reference
from helpers.edge.decode import (
    DecodeError,
    Decoder,
    DecoderConfig,
    Matvec,
    Precision,
    rate,
    rotary_table,
    serving_tensors,
    share_of_roof,
)
from helpers.edge.kernels import ArgumentError, DenseMatmul, DequantMatmul
from helpers.edge.vulkan import Check, open_device
from helpers.edge.weights import open_weights, write_weights
from helpers.measure import measured
from helpers.training.model import ModelConfig, build_model, turn

SHAPES = {
    "plain": {},
    "rotary": {"rotary": True},
    "grouped": {"kv_heads": 2},
    "gated": {"gated": True, "ffn_multiple": 2.75},
    "all": {"kv_heads": 1, "gated": True, "rotary": True, "ffn_multiple": 2.75, "vocab": 97, "blocks": 3},
}


def model(seed=0, **options):
    """A MiniLLM with norms that are not all ones, its config here, and its parameters as arrays."""
    made = build_model(ModelConfig(**{"width": 40, "blocks": 2, "heads": 4, "context": 24, **options}), seed)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name.endswith("norm.weight"):
                parameter.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(seed))
    config = DecoderConfig.like(made.config)
    return made, config, {name: value.numpy() for name, value in made.state_dict().items()}


def serve(device, folder, config, parameters, precision="fp32", **options):
    path = write_weights(folder / f"{precision}.weights", config, serving_tensors(config, parameters, precision))
    return Decoder(device, open_weights(path), **options)


def some_tokens(config, count=24, seed=0):
    return np.random.default_rng(seed).integers(0, config.vocab, count).tolist()


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_are_those_of_float64_and_of_pytorch(any_device, tmp_path, shape):
    made, config, parameters = model(**SHAPES[shape])
    tokens = some_tokens(config)
    truth = reference.logits(config, parameters, tokens)
    limit = reference.tolerance(config, truth)
    with torch.no_grad():
        theirs = made(torch.tensor([tokens]))[0].numpy()
    decoder = serve(any_device, tmp_path, config, parameters)
    ours = np.stack([decoder.step(token) for token in tokens])
    assert np.abs(theirs - truth).max() <= limit  # the oracle is the model that PyTorch has
    assert np.abs(ours - truth).max() <= limit
    assert np.abs(ours - theirs).max() <= 2 * limit
    assert decoder.length == config.context


@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize("shape", ["plain", "all"])
def test_every_precision_computes_what_its_file_says(device, tmp_path, shape, precision):
    _, config, parameters = model(**SHAPES[shape])
    tokens = some_tokens(config)
    truth = reference.logits(config, reference.rounded(parameters, precision), tokens)
    decoder = serve(device, tmp_path, config, parameters, precision)
    ours = np.stack([decoder.step(token) for token in tokens])
    assert np.abs(ours - truth).max() <= reference.tolerance(config, truth)


def test_less_precision_is_farther_from_the_model_and_moves_fewer_bytes(device, tmp_path):
    _, config, parameters = model(width=64)
    tokens = some_tokens(config, 8)
    truth = reference.logits(config, parameters, tokens)[-1]
    errors, nbytes = [], []
    for precision in Precision:
        decoder = serve(device, tmp_path, config, parameters, precision)
        errors.append(np.abs(decoder.prefill(tokens) - truth).max())
        nbytes.append(decoder.bytes_per_token(0).value)
    assert errors == sorted(errors) and nbytes == sorted(nbytes, reverse=True)


def greedy_in_pytorch(made, tokens, count):
    sequence = list(tokens)
    for _ in range(count):
        with torch.no_grad():
            sequence.append(int(made(torch.tensor([sequence]))[0, -1].argmax()))
    return sequence[len(tokens) :]


@pytest.mark.parametrize("shape", ["plain", "all"])
def test_greedy_tokens_are_the_same(any_device, tmp_path, shape):
    made, config, parameters = model(**SHAPES[shape])
    tokens = some_tokens(config, 5)
    decoder = serve(any_device, tmp_path, config, parameters)
    ours = decoder.generate(tokens, 12)
    assert ours == greedy_in_pytorch(made, tokens, 12) == reference.greedy(config, parameters, tokens, 12)
    decoder.rewind()
    assert decoder.generate(tokens, 12) == ours  # the bytes of the run before are not read


def test_prefill_token_by_token_is_the_same_as_steps_to_the_bit(device, tmp_path):
    _, config, parameters = model(**SHAPES["all"])
    tokens = some_tokens(config, 9)
    decoder = serve(device, tmp_path, config, parameters, chunk=1)
    stepped = [decoder.step(token) for token in tokens][-1]
    decoder.rewind()
    decoder.prefill(tokens[:4])
    assert np.array_equal(decoder.prefill(tokens[4:]), stepped)
    decoder.rewind(8)
    assert np.array_equal(decoder.step(tokens[8]), stepped)
    with pytest.raises(DecodeError, match="use 0 to 9"):
        decoder.rewind(10)


def caches(decoder):
    return [np.array(buffer.read()[: decoder.length]) for pair in decoder._caches for buffer in pair]


@pytest.mark.parametrize(
    ("shape", "precision"), [("plain", "fp32"), ("plain", "int4"), ("all", "fp16"), ("all", "int8")]
)
def test_a_prompt_in_chunks_leaves_the_logits_and_the_cache_of_steps(any_device, tmp_path, shape, precision):
    _, config, parameters = model(**SHAPES[shape])
    tokens = some_tokens(config)
    truth = reference.logits(config, reference.rounded(parameters, precision), tokens)
    limit = reference.tolerance(config, truth)
    decoder = serve(any_device, tmp_path, config, parameters, precision, chunk=7)  # 23 = 7 + 7 + 7 + 2
    if any_device.info.why_not("subgroup_shuffle"):
        assert decoder.chunk == 1
    stepped = np.stack([decoder.step(token) for token in tokens])
    kept = caches(decoder)
    decoder.rewind()
    assert np.abs(decoder.prefill(tokens) - truth[-1]).max() <= limit
    assert decoder.length == len(tokens)
    for ours, theirs in zip(caches(decoder), kept):
        assert np.abs(ours - theirs).max() <= 2 * reference.tolerance(config, theirs)
    decoder.rewind(3)  # a chunk begins anywhere, and its first token sees what is there
    assert np.abs(decoder.prefill(tokens[3:14]) - stepped[13]).max() <= 2 * limit
    assert sorted(decoder._silent) == ([1, 2, 3, 7] if decoder.chunk > 1 else [1])


def test_a_chunk_is_one_submit_without_hazard_and_its_sizes_are_recorded_once(device, tmp_path, monkeypatch):
    _, config, parameters = model(**SHAPES["all"])
    if device.info.why_not("subgroup_shuffle"):
        pytest.skip(device.info.why_not("subgroup_shuffle"))
    decoder, submits = serve(device, tmp_path, config, parameters, chunk=8), []
    submit = decoder._submit
    monkeypatch.setattr(
        decoder, "_submit", lambda recording, taken: (submits.append(len(taken)), submit(recording, taken))
    )
    for _ in range(2):
        decoder.prefill(some_tokens(config, 12))
    assert submits == [8, 3, 1, 8, 3, 1]
    assert all(recording.hazards == () for recording in decoder._silent.values())
    assert sorted(decoder._silent) == [1, 3, 8]
    with pytest.raises(DecodeError, match="chunks of 0"):
        serve(device, tmp_path, config, parameters, chunk=0)


def test_a_device_without_shuffle_takes_a_prompt_token_by_token(device, tmp_path, monkeypatch):
    _, config, parameters = model()
    asked = type(device.info).why_not
    monkeypatch.setattr(
        type(device.info), "why_not", lambda info, a: "not today" if a == "subgroup_shuffle" else asked(info, a)
    )
    decoder, tokens = serve(device, tmp_path, config, parameters), some_tokens(config, 6)
    truth = reference.logits(config, parameters, tokens)
    assert np.abs(decoder.prefill(tokens) - truth[-1]).max() <= reference.tolerance(config, truth)
    assert decoder.chunk == 1 and sorted(decoder._silent) == [1]
    for family in (DenseMatmul, DequantMatmul):
        with pytest.raises(ArgumentError, match="not today"):
            family(device)


@pytest.mark.parametrize("wrong", ["position", "head"])
def test_the_tolerance_sees_a_wrong_position_and_a_wrong_head(wrong):
    _, config, parameters = model(**SHAPES["rotary"])
    tokens = some_tokens(config)
    truth = reference.logits(config, parameters, tokens)
    if wrong == "position":
        other = reference.logits(DecoderConfig(**{**vars(config), "rotary_base": 10_000.0}), parameters, tokens)
    else:
        name = "blocks.0.attention.query.weight"
        rolled = np.roll(parameters[name], config.head_width, axis=0)
        other = reference.logits(config, {**parameters, name: rolled}, tokens)
    assert np.abs(other - truth).max() > 100 * reference.tolerance(config, truth)


def test_one_recording_serves_every_token_and_nothing_is_copied(device, tmp_path):
    _, config, parameters = model()
    decoder = serve(device, tmp_path, config, parameters)
    assert decoder.dispatches == 2 + 9 * config.blocks + 1
    assert decoder._whole.hazards == ()
    before = device.copies
    decoder.generate(some_tokens(config, 4), 8)
    assert device.copies == before
    if not device.info.why_not("host_import") and device.info.kind != "discrete":
        assert decoder.copied_bytes == 0 and decoder.mapped_bytes >= decoder.weight_bytes


def test_no_message_under_sync_validation(tmp_path):
    _, config, parameters = model(**SHAPES["all"])
    with open_device(checks=(Check.SYNC,)) as device:
        for precision in Precision:
            serve(device, tmp_path, config, parameters, precision).generate(some_tokens(config, 3), 3)
        assert device.take_messages() == ()


def test_a_device_that_imports_nothing_gets_a_copy_and_the_reason(device, tmp_path, monkeypatch):
    _, config, parameters = model()
    asked = type(device.info).why_not
    monkeypatch.setattr(
        type(device.info), "why_not", lambda info, a: "not today" if a == "host_import" else asked(info, a)
    )
    decoder = serve(device, tmp_path, config, parameters)
    assert (decoder.mapped_bytes, decoder.why_copied) == (0, "not today") and decoder.copied_bytes > 0
    tokens = some_tokens(config, 6)
    truth = reference.logits(config, parameters, tokens)
    assert np.abs(decoder.prefill(tokens) - truth[-1]).max() <= reference.tolerance(config, truth)


def test_bytes_per_token_counts_weights_and_cache(device, tmp_path):
    _, config, parameters = model(**SHAPES["grouped"])
    decoder = serve(device, tmp_path, config, parameters)
    tables = ("token.weight", "position.weight")
    matrices = sum(value.nbytes for name, value in parameters.items() if name not in tables)
    rows = 2 * 4 * config.width
    cache = 2 * 4 * config.blocks * (2 * config.head_width) * (5 + 1)
    assert decoder.bytes_per_token(5).value == matrices + rows + cache
    assert share_of_roof(measured(2e6, "B"), 1e-3, measured(1e10, "B/s")).value == 20.0
    assert rate(0.25).text == "4 token/s"


def test_the_rotary_table_is_that_of_pytorch():
    _, config, _ = model(**SHAPES["rotary"])
    x = torch.ones(1, config.context, 1, config.head_width, dtype=torch.float64)
    turned = turn(x)[0, :, 0].numpy()
    cosine, sine = rotary_table(config).transpose(2, 0, 1)
    assert np.abs(turned - np.concatenate([cosine - sine, cosine + sine], axis=1)).max() < 1e-5


def test_what_cannot_be_served_is_named(device, tmp_path):
    _, config, parameters = model()
    decoder = serve(device, tmp_path, config, parameters)
    with pytest.raises(DecodeError, match="no token 256"):
        decoder.step(256)
    with pytest.raises(DecodeError, match="no token -1"):
        decoder.prefill([3, -1])
    with pytest.raises(DecodeError, match="no tokens"):
        decoder.prefill([])
    assert decoder.length == 0
    with pytest.raises(DecodeError, match="0 tokens and 25 more are over the context of 24"):
        decoder.prefill([0] * 25)
    decoder.prefill([0] * 24)
    with pytest.raises(DecodeError, match="24 tokens and 1 more"):
        decoder.step(0)


def test_parameters_of_another_model_are_refused():
    _, config, parameters = model()
    without = {name: value for name, value in parameters.items() if name != "head.weight"}
    with pytest.raises(DecodeError, match=r"head\.weight is missing"):
        serving_tensors(config, without)
    with pytest.raises(DecodeError, match="extra is left over"):
        serving_tensors(config, {**parameters, "extra": np.zeros(3)})
    with pytest.raises(DecodeError, match=r"norm\.weight has the shape \(3,\), not \(40,\)"):
        serving_tensors(config, {**parameters, "norm.weight": np.zeros(3)})
    with pytest.raises(DecodeError, match="which ends at 65504"):
        serving_tensors(config, {**parameters, "head.weight": 1e6 * parameters["head.weight"]}, "fp16")


def test_a_file_of_another_model_is_refused(device, tmp_path):
    _, config, parameters = model()
    tensors = serving_tensors(config, parameters)
    changes = {
        "head is missing": {"head": None},
        "strange is unknown": {"strange": np.zeros(3, np.float32)},
        r"norm is float16 \(40,\)": {"norm": np.ones(40, np.float16)},
        r"head is float32 \(256, 39\)": {"head": np.zeros((256, 39), np.float32)},
    }
    for text, change in changes.items():
        changed = {name: value for name, value in {**tensors, **change}.items() if value is not None}
        with pytest.raises(DecodeError, match=text):
            Decoder(device, open_weights(write_weights(tmp_path / "other", config, changed)))
    for table, text in (({"width": 3}, "not whole"), ({"colour": 1}, "an unknown 'colour'")):
        with pytest.raises(DecodeError, match=text):
            Decoder(device, open_weights(write_weights(tmp_path / "other", table, tensors)))
    with pytest.raises(DecodeError, match="5 heads"):
        DecoderConfig(**{**vars(config), "heads": 5, "width": 42})
    with pytest.raises(DecodeError, match="width is 0"):
        DecoderConfig(**{**vars(config), "width": 0})


def test_matvec_refuses_what_does_not_fit(device):
    matvec = Matvec(device, 2)
    x, y = device.buffer(6), device.buffer(5)
    with pytest.raises(ArgumentError, match=r"use \(5, 3\)"):
        matvec.calls(device.buffer((5, 6), np.uint32), x, y)
    with pytest.raises(ArgumentError, match="words is float32"):
        matvec.calls(device.buffer((5, 3)), x, y)


def test_serving_needs_no_torch():
    program = "import sys, helpers.edge.decode, helpers.edge.cooperative; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
