"""The course's language model in NumPy and float64: what every way of serving it is compared with.

Written from the definition of the model, the whole sequence at once and without a cache, so that it shares no
shortcut with what it judges.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from helpers.edge import bounds
from helpers.edge.kernels import quantise

if TYPE_CHECKING:
    from helpers.edge.decode import DecoderConfig

# Measured: the worst of the models comes to 0.9·√N·u·max|logit|, in PyTorch.
MARGIN = 4


def logits(config: "DecoderConfig", parameters: Mapping[str, np.ndarray], tokens: Sequence[int]) -> np.ndarray:
    """Logits (T, vocab) in float64 of `tokens` (T,).

    parameters: by the names of a PyTorch `state_dict`, such as `blocks.0.attention.query.weight`.
    """
    p = {name: np.asarray(value, dtype=np.float64) for name, value in parameters.items()}
    x = p["token.weight"][np.asarray(tokens)]  # (T, W)
    if not config.rotary:
        x = x + p["position.weight"][: len(x)]
    for block in range(config.blocks):
        prefix = f"blocks.{block}."
        x = x + _attention(config, p, prefix, bounds.rmsnorm(x, p[f"{prefix}attention_norm.weight"], config.epsilon))
        x = x + _feed_forward(p, prefix, bounds.rmsnorm(x, p[f"{prefix}ffn_norm.weight"], config.epsilon))
    return bounds.rmsnorm(x, p["norm.weight"], config.epsilon) @ p["head.weight"].T


def greedy(
    config: "DecoderConfig", parameters: Mapping[str, np.ndarray], tokens: Sequence[int], count: int
) -> list[int]:
    """The `count` tokens that follow `tokens`, each the likeliest: of equal ones the first."""
    sequence = list(tokens)
    for _ in range(count):
        sequence.append(int(logits(config, parameters, sequence)[-1].argmax()))
    return sequence[len(tokens) :]


def rounded(parameters: Mapping[str, np.ndarray], precision: str, group: int = 32) -> dict[str, np.ndarray]:
    """The parameters in float64 as `precision` stores them: `fp32`, `fp16`, `int8` or `int4`.

    The matrices that are multiplied are rounded; norms and embeddings are not.
    """
    kept = {"fp32": lambda w: w, "fp16": lambda w: w.astype(np.float16)}
    kept |= {f"int{bits}": lambda w, bits=bits: quantise(w, bits, group).values() for bits in (4, 8)}
    multiplied = lambda name, w: w.ndim == 2 and name not in ("token.weight", "position.weight")
    arrays = {name: np.asarray(value) for name, value in parameters.items()}
    return {name: (kept[precision](w) if multiplied(name, w) else w).astype(float) for name, w in arrays.items()}


def tolerance(config: "DecoderConfig", truth: np.ndarray) -> float:
    """How far fp32 logits may be from `truth` (T, vocab) in float64, an absolute number.

    `MARGIN`·√N·u·max|logit|: N roundings lie on the longest way from a token to a logit, u = 2⁻²⁴, and
    roundings of random sign add up to their square root (Higham, Accuracy and Stability of Numerical
    Algorithms, section 2.8). It is a rule with a margin, not a proof: what a layer amplifies is not in it. As
    measured, fresh models come to 1/25 of it in PyTorch and in the shaders alike, one that learned a text by
    heart and amplifies most to a quarter; a wrong head or base of the positions is hundreds of it.
    """
    once = 2 * config.width + config.head_width + config.context + config.ffn_width
    roundings = config.blocks * (once + 3 * config.width) + 2 * config.width
    return float(MARGIN * np.sqrt(roundings) * bounds.UNIT_ROUNDOFF * np.abs(truth).max())


def _attention(config: "DecoderConfig", p: Mapping, prefix: str, x: np.ndarray) -> np.ndarray:
    time = len(x)
    q, k, v = (
        (x @ p[f"{prefix}attention.{part}.weight"].T).reshape(time, -1, config.head_width)
        for part in ("query", "key", "value")
    )
    if config.rotary:
        q, k = _turn(config, q), _turn(config, k)
    mixed = [bounds.attention(q[t], k[: t + 1], v[: t + 1], config.head_width**-0.5) for t in range(time)]
    return np.reshape(mixed, (time, -1)) @ p[f"{prefix}attention.out.weight"].T


def _turn(config: "DecoderConfig", x: np.ndarray) -> np.ndarray:
    """Rotary positions as complex numbers: element i and i + D/2 of a head are one, turned by its angle."""
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None] * config.rotary_base ** (-np.arange(half) / half)
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)[:, None]
    return np.concatenate([turned.real, turned.imag], axis=-1)


def _feed_forward(p: Mapping, prefix: str, x: np.ndarray) -> np.ndarray:
    up, gate = x @ p[f"{prefix}ffn.up.weight"].T, p.get(f"{prefix}ffn.gate.weight")
    hidden = _silu(up) if gate is None else _silu(x @ gate.T) * up
    return hidden @ p[f"{prefix}ffn.down.weight"].T


def _silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))
