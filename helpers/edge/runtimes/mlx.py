"""MLX: arrays that are computed when they are asked for. On Linux and Windows it has a CPU back end."""

from collections.abc import Mapping

import numpy as np

from helpers.edge.decode import DecoderConfig
from helpers.edge.runtimes.runtime import Runtime, Session


class MlxSession(Session):
    """The step in MLX's own fused operators; the cache is written in place."""

    def __init__(self, config: DecoderConfig, parameters: Mapping[str, np.ndarray]):
        import mlx.core as mx

        super().__init__(config)
        self._weights = {name: mx.array(value) for name, value in parameters.items()}
        shape = (1, config.kv_heads, config.context, config.head_width)
        self._caches = [[mx.zeros(shape), mx.zeros(shape)] for _ in range(config.blocks)]
        mx.eval(self._weights, self._caches)

    def _step(self, token: int, place: int) -> np.ndarray:
        import mlx.core as mx

        c, w = self.config, self._weights
        x = w["token.weight"][token][None]  # (1, W)
        if not c.rotary:
            x = x + w["position.weight"][place]
        for block in range(c.blocks):
            here = f"blocks.{block}."
            x = x + self._attention(self._norm(x, f"{here}attention_norm"), f"{here}attention", block, place)
            x = x + self._feed_forward(self._norm(x, f"{here}ffn_norm"), f"{here}ffn")
        logits = self._linear(self._norm(x, "norm"), "head")[0]
        mx.eval(logits, self._caches)
        return np.array(logits)

    def _norm(self, x, name: str):
        import mlx.core as mx

        return mx.fast.rms_norm(x, self._weights[f"{name}.weight"], self.config.epsilon)

    def _linear(self, x, name: str):
        return x @ self._weights[f"{name}.weight"].T

    def _attention(self, x, here: str, block: int, place: int):
        import mlx.core as mx

        c = self.config
        q, k, v = (
            self._linear(x, f"{here}.{part}").reshape(1, -1, 1, c.head_width) for part in ("query", "key", "value")
        )  # (1, H, 1, D)
        if c.rotary:
            turn = lambda y: mx.fast.rope(
                y, c.head_width, traditional=False, base=c.rotary_base, scale=1.0, offset=place
            )
            q, k = turn(q), turn(k)
        keys, values = self._caches[block]
        keys[:, :, place : place + 1], values[:, :, place : place + 1] = k, v
        mixed = mx.fast.scaled_dot_product_attention(
            q, keys[:, :, : place + 1], values[:, :, : place + 1], scale=c.head_width**-0.5
        )
        return self._linear(mixed.reshape(1, c.width), f"{here}.out")

    def _feed_forward(self, x, here: str):
        import mlx.core as mx

        silu = lambda y: y * mx.sigmoid(y)
        up = self._linear(x, f"{here}.up")
        hidden = silu(self._linear(x, f"{here}.gate")) * up if self.config.gated else silu(up)
        return self._linear(hidden, f"{here}.down")


RUNTIME = Runtime("MLX", ("mlx.core",), "mlx", 'pip install "mlx[cpu]"', MlxSession)
