import pytest
import torch
from torch import nn

from helpers.training.data import IGNORE, Batches, DataError, standard_library
from helpers.training.mfu import ConventionError, count_weights, flops_per_token, recomputed_flops_per_token
from helpers.training.model import MiniLLM, ModelConfig, turn
from helpers.training.presets import FLOOR, PRESETS, load_preset


@pytest.mark.parametrize("name", PRESETS)
def test_parameters_by_formula_are_those_of_the_model(name):
    config = load_preset(name).model
    with torch.device("meta"):
        model = MiniLLM(config)
    parameters = {path: parameter.numel() for path, parameter in model.named_parameters()}
    weights = count_weights(config)
    assert weights.total == sum(parameters.values())
    assert weights.embedding == parameters["token.weight"] + parameters.get("position.weight", 0)
    assert weights.norm == sum(size for path, size in parameters.items() if "norm" in path)


def test_the_large_presets_are_the_published_sizes():
    """8.03 and 70.55 billion: Llama 3's, with an untied head."""
    assert count_weights(load_preset("8b").model).total == 8_030_261_248
    assert count_weights(load_preset("70b").model).total == 70_553_706_496


def test_the_documents_count_is_ours_with_its_biases_and_without_positions_and_last_norm():
    config = load_preset("minillm-735m").model
    with torch.device("meta"):
        attention = nn.MultiheadAttention(config.width, config.heads)
        biases = sum(p.numel() for name, p in attention.named_parameters() if "bias" in name)
    ours = count_weights(config).total
    assert ours - (config.context + 1) * config.width + config.blocks * biases == 735_199_232


def test_three_conventions_differ_by_embeddings_and_norms():
    config = load_preset("tiny").model
    titan, pico, nano = (flops_per_token(config, name) for name in ("torchtitan", "picotron", "nanochat"))
    weights = count_weights(config)
    assert pico - titan == 6 * weights.embedding and titan - nano == 6 * weights.norm
    assert recomputed_flops_per_token(config) < nano / 3
    with pytest.raises(ConventionError, match="no convention 'megatron'"):
        flops_per_token(config, "megatron")


def test_the_learning_rate_warms_up_and_falls_to_a_tenth():
    preset = load_preset("small")
    rates = [preset.learning_rate_at(step) for step in range(preset.warmup_steps + preset.decay_steps + 50)]
    assert rates[0] == pytest.approx(preset.learning_rate / preset.warmup_steps)
    assert max(rates) == rates[preset.warmup_steps] == pytest.approx(preset.learning_rate)
    assert rates[-1] == pytest.approx(FLOOR * preset.learning_rate)
    middle = preset.warmup_steps + preset.decay_steps // 2
    assert rates[middle] == pytest.approx((1 + FLOOR) / 2 * preset.learning_rate, rel=1e-3)
    assert load_preset("tiny").learning_rate_at(10**6) == load_preset("tiny").learning_rate


def test_turning_keeps_lengths_and_only_distances_matter():
    x = torch.randn(1, 8, 1, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    turned = turn(x.expand(1, 8, 1, 16))
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), rtol=1e-6, atol=0)
    q, k = (torch.randn(16, dtype=torch.float64).expand(1, 8, 1, 16) for _ in range(2))
    scores = turn(q)[0, :, 0] @ turn(k)[0, :, 0].T
    torch.testing.assert_close(scores.diagonal(2), scores[0, 2].expand(6), rtol=1e-4, atol=1e-5)


def test_short_windows_are_the_same_on_any_number_of_ranks():
    text = standard_library().train
    whole = Batches(text, 32, 8, shortest=4).at(3)
    parts = [Batches(text, 32, 8, rank, 4, shortest=4).at(3) for rank in range(4)]
    assert torch.equal(torch.cat([part.targets for part in parts]), whole.targets)
    assert sum(part.tokens for part in parts) == whole.tokens < whole.targets.numel()
    assert ((whole.targets != IGNORE).sum(1) >= 4).all()
    assert sum(part.tokens for part in whole.split(2)) == whole.tokens
    with pytest.raises(DataError, match="cannot keep 33 targets"):
        Batches(text, 32, 8, shortest=33)


def test_grouped_heads_must_divide():
    with pytest.raises(Exception, match="3 key and value heads do not divide"):
        ModelConfig(64, 1, 4, 8, kv_heads=3)
    with pytest.raises(Exception, match=r"times 0\.3 is not a number of features"):
        ModelConfig(64, 1, 4, 8, ffn_multiple=0.3)
