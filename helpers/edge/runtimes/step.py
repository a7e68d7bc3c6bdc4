"""One token of the model as a PyTorch module without state: what PyTorch runs, and what the exporters trace."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from helpers.edge.decode import DecoderConfig, rotary_table

if TYPE_CHECKING:
    import torch


def step_module(config: DecoderConfig, parameters: Mapping[str, np.ndarray]) -> "torch.nn.Module":
    """A module of fp32 weights; its forward takes and returns fp32 tensors but for the token.

    token (1,) int64; place, the vector (width,) of its position, zeros with rotary positions; turn
    (head_width / 2, 2), cosine and sine; mask (L + 1,), 0 for what counts and -inf for what does not, the token
    itself last; then keys and values of each block (kv_heads, L, head_width) of the tokens before. Returns the logits
    (vocab,) and the token's own keys and values (blocks, kv_heads, 1, head_width). L may be the tokens so far, or
    always the context.
    """
    import torch

    class Step(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name, value in parameters.items():
                self.register_buffer(name.replace(".", "_"), torch.from_numpy(np.array(value, np.float32)))
            self.register_buffer("average", torch.full((1, config.width), 1 / config.width))
            self.register_buffer("epsilon", torch.tensor([config.epsilon]))

        def forward(self, token, place, turn, mask, *caches):
            return _forward(config, self, token, place, turn, mask, caches)

    return Step().eval()


def _weight(module: "torch.nn.Module", name: str) -> "torch.Tensor":
    return getattr(module, f"{name}.weight".replace(".", "_"))


def _linear(module, x, name: str):
    from torch.nn import functional as F

    return F.linear(x, _weight(module, name))


def _norm(module, x, name: str):
    """The mean as a product: every delegate multiplies matrices, and not every one takes a mean or an epsilon."""
    from torch.nn import functional as F

    square = F.linear(x * x, module.average, module.epsilon)  # (1, 1)
    return x * square.rsqrt() * _weight(module, name)


def _forward(config: DecoderConfig, module, token, place, turn, mask, caches):
    import torch
    from torch.nn import functional as F

    x = F.embedding(token, _weight(module, "token")) + place  # (1, W)
    own = []
    for block in range(config.blocks):
        here = f"blocks.{block}."
        normed = _norm(module, x, f"{here}attention_norm")
        mixed, *new = _attention(config, module, normed, f"{here}attention", turn, mask, *caches[2 * block :][:2])
        own.append(new)
        x = x + mixed
        x = x + _feed_forward(config, module, _norm(module, x, f"{here}ffn_norm"), f"{here}ffn")
    logits = _linear(module, _norm(module, x, "norm"), "head")
    k, v = (torch.stack(tensors) for tensors in zip(*own))
    return logits[0], k, v


def _attention(config: DecoderConfig, module, x, here: str, turn, mask, keys, values):
    import torch

    width, group = config.head_width, config.heads // config.kv_heads
    q, k, v = (_linear(module, x, f"{here}.{part}").view(-1, 1, width) for part in ("query", "key", "value"))
    if config.rotary:
        q, k = _turned(q, turn), _turned(k, turn)  # (H, 1, D)
    keys, values = torch.cat([keys, k], 1), torch.cat([values, v], 1)  # (G, L + 1, D)
    scores = torch.bmm(q.view(config.kv_heads, group, width), keys.transpose(1, 2)) * width**-0.5 + mask
    mixed = torch.bmm(torch.softmax(scores, -1), values)  # of scores (G, H / G, L + 1)
    return _linear(module, mixed.reshape(1, config.width), f"{here}.out"), k, v


def _turned(x, turn):
    import torch

    cos, sin = turn[:, 0], turn[:, 1]
    left, right = x[..., : len(turn)], x[..., len(turn) :]
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


def _feed_forward(config: DecoderConfig, module, x, here: str):
    from torch.nn import functional as F

    up = _linear(module, x, f"{here}.up")
    hidden = F.silu(_linear(module, x, f"{here}.gate")) * up if config.gated else F.silu(up)
    return _linear(module, hidden, f"{here}.down")


class HostCache:
    """A cache of arrays on the host, and all other inputs of a step: a runtime is handed them.

    keys, values: float32 (blocks, kv_heads, context, head_width).
    """

    def __init__(self, config: DecoderConfig, parameters: Mapping[str, np.ndarray]):
        shape = (config.blocks, config.kv_heads, config.context, config.head_width)
        self.keys, self.values = (np.zeros(shape, np.float32) for _ in range(2))
        self.turns = rotary_table(config)
        nowhere = np.zeros((config.context, config.width), np.float32)
        self.places = np.asarray(parameters.get("position.weight", nowhere))
        # Row `place`: so many tokens count, and the one that is taken.
        counts = np.arange(config.context + 1) < np.arange(config.context)[:, None]
        self.masks = np.where(counts, 0, -np.inf).astype(np.float32)
        self.masks[:, -1] = 0

    def inputs(self, token: int, place: int) -> tuple[np.ndarray, ...]:
        """What `step_module` takes, with the whole context, which every token reads."""
        caches = (array for pair in zip(self.keys, self.values) for array in pair)
        return np.array([token]), self.places[place], self.turns[place], self.masks[place], *caches

    def keep(self, place: int, keys: np.ndarray, values: np.ndarray) -> None:
        """Put a token's keys and values (blocks, kv_heads, 1, head_width) at `place`."""
        self.keys[:, :, place : place + 1], self.values[:, :, place : place + 1] = keys, values
