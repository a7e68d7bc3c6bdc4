"""MiniLLM: a small causal language model over bytes, built from blocks that can be sharded one by one."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from helpers.errors import CourseError


class ModelError(CourseError):
    """A model configuration that cannot be built, or an input that the model cannot read."""


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a `MiniLLM`.

    width: features of the residual stream. blocks: transformer blocks. heads: attention heads,
    which must divide `width`. context: the longest sequence, in tokens. ffn_multiple: hidden
    features of the feed-forward network over `width`. vocab: distinct tokens; 256 means bytes.
    kv_heads: heads of keys and values, which must divide `heads`; 0 means as many as `heads`.
    gated: the feed-forward network multiplies two up-projections (SwiGLU). rotary: positions turn
    queries and keys (RoPE) and cost no parameters; without it they are a learned embedding.
    """

    width: int
    blocks: int
    heads: int
    context: int
    ffn_multiple: float = 4
    vocab: int = 256
    kv_heads: int = 0
    gated: bool = False
    rotary: bool = False

    def __post_init__(self):
        for name in ("width", "blocks", "heads", "context", "vocab"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ModelError(f"{name} is {value!r}", where="ModelConfig", mend=f"{name} must be ≥ 1")
        _require_divides(self.heads, self.width, "heads", "a width")
        _require_divides(self.kv_heads or self.heads, self.heads, "key and value heads", "a number of heads")
        if self.ffn_width < 1 or self.ffn_width != self.width * self.ffn_multiple:
            raise ModelError(
                f"a width of {self.width} times {self.ffn_multiple} is not a number of features",
                where="ModelConfig",
                mend="choose ffn_multiple so that the product is whole and at least 1",
            )

    @property
    def ffn_width(self) -> int:
        """Hidden features of the feed-forward network."""
        return int(self.width * self.ffn_multiple)

    @property
    def head_width(self) -> int:
        """Features of one head."""
        return self.width // self.heads

    @property
    def kv_width(self) -> int:
        """Features of all keys, and of all values."""
        return (self.kv_heads or self.heads) * self.head_width


def _require_divides(count: int, whole: int, what: str, of: str) -> None:
    if count < 1 or whole % count:
        raise ModelError(
            f"{count} {what} do not divide {of} of {whole}",
            where="ModelConfig",
            mend="choose a number that divides it",
        )


class Attention(nn.Module):
    """Causal self-attention without biases: a token sees itself and what came before it.

    Queries, keys and values have a linear layer each, whose rows are ordered by head: cut by
    rows, each part holds whole heads. The number of heads is read off the activations, so the
    same forward serves a part of the heads.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.head_width, self.rotary = config.head_width, config.rotary
        self.query = nn.Linear(config.width, config.width, bias=False)
        self.key = nn.Linear(config.width, config.kv_width, bias=False)
        self.value = nn.Linear(config.width, config.kv_width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, _ = x.shape
        projections = (self.query(x), self.key(x), self.value(x))
        q, k, v = (y.view(batch, time, -1, self.head_width) for y in projections)  # (B, T, H, D/H)
        if self.rotary:
            q, k = turn(q), turn(k)
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        grouped = q.shape[1] != k.shape[1]
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        return self.out(mixed.transpose(1, 2).reshape(batch, time, -1))


def turn(x: Tensor, base: float = 500_000.0) -> Tensor:
    """Rotary positions: turn each pair (i, i + D/2) of features by its position over base^(2i/D).

    x: (B, T, H, D) with an even D; the result has its dtype. The angles are computed anew each
    time, so there is no buffer that could be left uninitialised. Source: Su et al. 2021,
    arXiv:2104.09864, equation 34; the base is that of Llama 3.
    """
    half = x.shape[-1] // 2
    speeds = base ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    places = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)
    angles = places[:, None, None] * speeds  # (T, 1, D/2)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    left, right = x[..., :half], x[..., half:]
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


class FeedForward(nn.Module):
    """Two linear layers with a SiLU between them, applied to each token alone; gated when configured."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.up = nn.Linear(config.width, config.ffn_width, bias=False)
        self.gate = nn.Linear(config.width, config.ffn_width, bias=False) if config.gated else None
        self.down = nn.Linear(config.ffn_width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.silu(self.up(x)) if self.gate is None else F.silu(self.gate(x)) * self.up(x)
        return self.down(hidden)


class Block(nn.Module):
    """Attention, then feed-forward, each behind an RMSNorm and added to the residual stream."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width)
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.width)
        self.ffn = FeedForward(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.ffn(self.ffn_norm(x))


class MiniLLM(nn.Module):
    """A decoder-only transformer: tokens (B, T) int64 → logits (B, T, V) in the compute dtype.

    The head is not tied to the embedding, and no module holds a buffer. Every module that owns a
    parameter has `reset_parameters`, so the model can be built on the meta device, sharded, and
    initialised shard by shard (`helpers.training.materialise`).
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.token = nn.Embedding(config.vocab, config.width)
        self.position = None if config.rotary else nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.blocks))
        self.norm = nn.RMSNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        time = tokens.shape[1]
        if time > self.config.context:
            raise ModelError(
                f"{time} tokens are more than the context of {self.config.context}",
                where="MiniLLM.forward",
                mend="pass the last tokens only, or choose a preset with a longer context",
            )
        x = self.token(tokens)
        if self.position is not None:
            x = x + self.position(torch.arange(time, device=tokens.device))
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.head(x)


def build_model(config: ModelConfig, seed: int) -> MiniLLM:
    """A `MiniLLM` in fp32 on the CPU, the same weights for the same seed in every process.

    The caller's random state is left as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MiniLLM(config)


def owners(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """(path, module) of every module that owns a parameter, in the order of construction.

    Raises `ModelError` for one without `reset_parameters`: after `to_empty` it would silently keep
    whatever bytes the memory held.
    """
    for path, module in model.named_modules():
        if next(module.parameters(recurse=False), None) is None:
            continue
        if not hasattr(module, "reset_parameters"):
            raise ModelError(
                f"{type(module).__name__} owns parameters but has no reset_parameters",
                where=path or "the root module",
                mend="give the module a reset_parameters method",
            )
        yield path, module


def initialise(model: nn.Module) -> None:
    """Call `reset_parameters` of every module that owns a parameter, in place; errors as `owners`."""
    for _, module in owners(model):
        module.reset_parameters()


def count_parameters(model: nn.Module) -> int:
    """Parameters of the whole model; a sharded parameter counts with its full shape."""
    return sum(parameter.numel() for parameter in model.parameters())
