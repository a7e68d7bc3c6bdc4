"""MiniLLM: a small causal language model over bytes, built from blocks that can be sharded one by one."""

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
    """

    width: int
    blocks: int
    heads: int
    context: int
    ffn_multiple: int = 4
    vocab: int = 256

    def __post_init__(self):
        for name, value in vars(self).items():
            if not isinstance(value, int) or value < 1:
                raise ModelError(f"{name} is {value!r}", where="ModelConfig", mend=f"{name} must be ≥ 1")
        if self.width % self.heads:
            raise ModelError(
                f"{self.heads} heads do not divide a width of {self.width}",
                where="ModelConfig",
                mend="choose heads so that width / heads is whole",
            )


class Attention(nn.Module):
    """Causal self-attention without biases: a token sees itself and what came before it."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        qkv = self.qkv(x).view(batch, time, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, H, T, D/H)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, time, width))


class FeedForward(nn.Module):
    """Two linear layers with a SiLU between them, applied to each token alone."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.up = nn.Linear(config.width, config.ffn_multiple * config.width, bias=False)
        self.down = nn.Linear(config.ffn_multiple * config.width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.up(x)))


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

    Positions are learned, the head is not tied to the embedding, and no module holds a buffer.
    Every module that owns a parameter has `reset_parameters`, so the model can be built on the
    meta device, sharded, materialised with `to_empty` and initialised with `initialise`.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.token = nn.Embedding(config.vocab, config.width)
        self.position = nn.Embedding(config.context, config.width)
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
        x = self.token(tokens) + self.position(torch.arange(time, device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build_model(config: ModelConfig, seed: int) -> MiniLLM:
    """A `MiniLLM` in fp32 on the CPU, the same weights for the same seed in every process.

    The caller's random state is left as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MiniLLM(config)


def initialise(model: nn.Module) -> None:
    """Call `reset_parameters` of every module that owns a parameter, in place.

    Raises `ModelError` for a module that owns a parameter and cannot initialise it: after
    `to_empty` it would silently keep whatever bytes the memory held.
    """
    for name, module in model.named_modules():
        if next(module.parameters(recurse=False), None) is None:
            continue
        if not hasattr(module, "reset_parameters"):
            raise ModelError(
                f"{type(module).__name__} owns parameters but has no reset_parameters",
                where=name or "the root module",
                mend="give the module a reset_parameters method",
            )
        module.reset_parameters()


def count_parameters(model: nn.Module) -> int:
    """Parameters of the whole model; a sharded parameter counts with its full shape."""
    return sum(parameter.numel() for parameter in model.parameters())


def flops_per_token(config: ModelConfig) -> int:
    """FLOP of one training token, forward and backward: 6·N_matmul + 12·L·d·T.

    N_matmul are the weights that a token is multiplied with (linear layers and head, without
    embeddings and norms): 2 FLOP each forward, 4 backward. Attention multiplies Q·Kᵀ and A·V, 2·T·d
    FLOP each, forward once and backward twice, in L blocks, counted over the whole context T as
    if nothing were masked. This is the convention of torchtitan's MFU; Kaplan et al. 2020
    (arXiv:2001.08361, section 2.1) derive the 6·N.
    """
    block = (4 + 2 * config.ffn_multiple) * config.width**2
    matmul = config.blocks * block + config.vocab * config.width
    return 6 * matmul + 12 * config.blocks * config.width * config.context
