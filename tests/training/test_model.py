import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from helpers.training.generate import complete
from helpers.training.mfu import flops_per_token
from helpers.training.model import (
    MiniLLM,
    ModelConfig,
    ModelError,
    build_model,
    count_parameters,
    initialise,
)
from helpers.training.presets import PRESETS, PresetError, load_preset

SMALL = ModelConfig(width=32, blocks=2, heads=4, context=16, vocab=50)


def tokens(batch=2, time=16, seed=0):
    return torch.randint(0, SMALL.vocab, (batch, time), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("place", [1, 7, 15])
def test_a_later_token_cannot_change_an_earlier_logit(place):
    model, text = build_model(SMALL, seed=1), tokens()
    changed = text.clone()
    changed[:, place] = (changed[:, place] + 1) % SMALL.vocab
    before, after = model(text), model(changed)
    assert torch.equal(before[:, :place], after[:, :place])
    assert not torch.allclose(before[:, place], after[:, place])


def test_attention_is_a_masked_softmax_in_float64():
    attention = build_model(SMALL, seed=2).blocks[0].attention.double()
    x = torch.randn(2, 16, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    q, k, v = (x @ layer.weight.T for layer in (attention.query, attention.key, attention.value))
    heads = []
    for head in range(4):
        columns = slice(8 * head, 8 * head + 8)
        scores = q[..., columns] @ k[..., columns].mT / 8**0.5
        scores = scores.masked_fill(torch.ones(16, 16).triu(1).bool(), float("-inf"))
        heads.append(scores.softmax(-1) @ v[..., columns])
    torch.testing.assert_close(attention(x), torch.cat(heads, -1) @ attention.out.weight.T)


def test_flops_agree_with_the_counter_of_torch():
    model, text = build_model(SMALL, seed=0), tokens()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        F.cross_entropy(model(text).flatten(0, 1), text.flatten()).backward()
    assert counter.get_total_flops() == text.numel() * flops_per_token(SMALL)


def test_parameters_are_counted_by_hand():
    d, blocks, vocab, context = 32, 2, 50, 16
    by_hand = vocab * d + context * d + blocks * (4 * d * d + 8 * d * d + 2 * d) + d + d * vocab
    assert count_parameters(MiniLLM(SMALL)) == by_hand


def test_a_seed_gives_the_same_weights_and_disturbs_no_one():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, two, other = build_model(SMALL, 1), build_model(SMALL, 1), build_model(SMALL, 2)
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters()))
    assert not torch.equal(one.head.weight, other.head.weight)


def test_a_model_from_the_meta_device_is_initialised_whole():
    with torch.device("meta"):
        model = MiniLLM(SMALL)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    initialise(model)
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    assert list(model.buffers()) == []


def test_a_module_that_cannot_be_initialised_is_named():
    model = MiniLLM(SMALL)
    model.blocks[1].scale = torch.nn.ParameterList([torch.ones(3)])
    with pytest.raises(ModelError, match=r"ParameterList owns parameters[\s\S]*blocks\.1\.scale"):
        initialise(model)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"heads": 3}, "3 heads do not divide"), ({"blocks": 0}, "blocks is 0"), ({"width": 8.0}, "width is 8")],
)
def test_an_impossible_shape_is_refused(change, words):
    with pytest.raises(ModelError, match=words):
        ModelConfig(**{**vars(SMALL), **change})


def test_too_long_a_text_is_refused():
    with pytest.raises(ModelError, match="17 tokens are more than the context of 16"):
        build_model(SMALL, 0)(tokens(time=17))


def test_presets_are_found_and_near_misses_named():
    assert {"tiny", "small"} <= set(PRESETS)
    with pytest.raises(PresetError, match="did you mean 'tiny'"):
        load_preset("tinny")
    with pytest.raises(PresetError, match="does not divide among 3 ranks"):
        load_preset("tiny").batch_per_rank(3)


def test_completion_follows_a_model_that_counts_up():
    config = ModelConfig(width=256, blocks=1, heads=1, context=4)
    model = build_model(config, 0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.token.weight.copy_(torch.eye(256))
        model.norm.weight.fill_(1)
        model.head.weight.copy_(torch.eye(256).roll(1, 0))
    assert complete(model, "ab", 8) == "abcdefghij"
    assert complete(model, "ab", 3, temperature=0.01, seed=1) == "abcde"


@pytest.mark.parametrize(("prompt", "temperature"), [("", 0.0), ("a", -1.0)])
def test_completion_refuses_what_it_cannot_continue(prompt, temperature):
    with pytest.raises(ModelError, match="cannot continue"):
        complete(build_model(SMALL, 0), prompt, 3, temperature)
