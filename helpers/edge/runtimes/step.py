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
    from torch.nn import functional as F

    c, group = config, config.heads // config.kv_heads

    class Step(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name, value in parameters.items():
                self.register_buffer(name.replace(".", "_"), torch.from_numpy(np.array(value, np.float32)))
            self.register_buffer("average", torch.full((1, c.width), 1 / c.width))
            self.register_buffer("epsilon", torch.tensor([c.epsilon]))

        def weight(self, name: str) -> torch.Tensor:
            return getattr(self, f"{name}.weight".replace(".", "_"))

        def norm(self, x, name):
            # The mean as a product: every delegate multiplies matrices, and not every one takes a mean or an epsilon.
            square = F.linear(x * x, self.average, self.epsilon)  # (1, 1)
            return x * torch.rsqrt(square) * self.weight(name)

        def forward(self, token, place, turn, mask, *caches):
            x = F.embedding(token, self.weight("token")) + place  # (1, W)
            own = []
            for block in range(c.blocks):
                here = f"blocks.{block}."
                normed = self.norm(x, f"{here}attention_norm")
                mixed, *new = self.attention(normed, f"{here}attention", turn, mask, *caches[2 * block :][:2])
                own.append(new)
                x = x + mixed
                x = x + self.feed_forward(self.norm(x, f"{here}ffn_norm"), f"{here}ffn")
            logits = F.linear(self.norm(x, "norm"), self.weight("head"))
            k, v = (torch.stack(tensors) for tensors in zip(*own))
            return logits[0], k, v

        def attention(self, x, here, turn, mask, keys, values):
            q, k, v = (
                F.linear(x, self.weight(f"{here}.{part}")).view(-1, 1, c.head_width)
                for part in ("query", "key", "value")
            )  # (H, 1, D)
            if c.rotary:
                q, k = self.turned(q, turn), self.turned(k, turn)
            keys, values = torch.cat([keys, k], 1), torch.cat([values, v], 1)  # (G, L + 1, D)
            q = q.view(c.kv_heads, group, c.head_width)
            scores = torch.bmm(q, keys.transpose(1, 2)) * c.head_width**-0.5 + mask  # (G, H / G, L + 1)
            mixed = torch.bmm(torch.softmax(scores, -1), values)
            return F.linear(mixed.reshape(1, c.width), self.weight(f"{here}.out")), k, v

        def turned(self, x, turn):
            cos, sin = turn[:, 0], turn[:, 1]
            left, right = x[..., : c.head_width // 2], x[..., c.head_width // 2 :]
            return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)

        def feed_forward(self, x, here):
            up = F.linear(x, self.weight(f"{here}.up"))
            hidden = F.silu(F.linear(x, self.weight(f"{here}.gate"))) * up if c.gated else F.silu(up)
            return F.linear(hidden, self.weight(f"{here}.down"))

    return Step().eval()


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
