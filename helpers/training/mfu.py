"""How many FLOP a training token costs: three conventions in use, which give one run three MFUs."""

from dataclasses import dataclass

from helpers.errors import CourseError
from helpers.training.model import ModelConfig


class ConventionError(CourseError):
    """A way of counting FLOP that does not exist."""


@dataclass(frozen=True)
class Weights:
    """Parameters of a `MiniLLM` by what is done with them.

    matmul: multiplied with every token (linear layers and head). embedding: looked up. norm: scales.
    """

    matmul: int
    embedding: int
    norm: int

    @property
    def total(self) -> int:
        """All parameters."""
        return self.matmul + self.embedding + self.norm


def count_weights(config: ModelConfig) -> Weights:
    """The parameters of `MiniLLM(config)`, by formula, without building it."""
    positions = 0 if config.rotary else config.context
    return Weights(
        matmul=config.blocks * block_matmul(config) + config.vocab * config.width,
        embedding=(config.vocab + positions) * config.width,
        norm=(2 * config.blocks + 1) * config.width,
    )


def block_matmul(config: ModelConfig) -> int:
    """Weights of the linear layers of one block."""
    attention = 2 * config.width**2 + 2 * config.width * config.kv_width
    return attention + (3 if config.gated else 2) * config.width * config.ffn_width


def attention_flops(config: ModelConfig) -> int:
    """FLOP of one token in Q·Kᵀ and A·V, forward and backward: 12·L·d·T.

    2·T·d each forward, twice that backward, in L blocks, over the whole context T as if nothing
    were masked.
    """
    return 12 * config.blocks * config.width * config.context


def torchtitan(config: ModelConfig) -> int:
    """6·(N − N_embedding) + 12·L·d·T: embeddings are looked up, norms count as if multiplied."""
    weights = count_weights(config)
    return 6 * (weights.total - weights.embedding) + attention_flops(config)


def picotron(config: ModelConfig) -> int:
    """6·N + 12·L·d·T with all N parameters, the embedding tables among them."""
    return 6 * count_weights(config).total + attention_flops(config)


def nanochat(config: ModelConfig) -> int:
    """6·N_matmul + 12·L·d·T: only what is multiplied; `MiniLLM` has no attention window to shorten T."""
    return 6 * count_weights(config).matmul + attention_flops(config)


CONVENTIONS = {"torchtitan": torchtitan, "picotron": picotron, "nanochat": nanochat}


def flops_per_token(config: ModelConfig, convention: str = "nanochat") -> int:
    """FLOP of one training token, forward and backward, without what is computed twice.

    2 FLOP a weight forward and 4 backward (Kaplan et al. 2020, arXiv:2001.08361, section 2.1), plus
    attention. convention: what counts as a weight; each is named after the code base that uses it,
    as read in 2026. The default counts exactly what torch's FLOP counter sees.
    Raises `ConventionError` for another name.
    """
    if convention not in CONVENTIONS:
        raise ConventionError(f"there is no convention {convention!r}", mend=f"use one of {', '.join(CONVENTIONS)}")
    return CONVENTIONS[convention](config)


def recomputed_flops_per_token(config: ModelConfig) -> int:
    """FLOP that activation checkpointing of every block computes again: one more forward of the blocks.

    HFU, the hardware's utilisation, adds these to the numerator; MFU never does.
    """
    return 2 * config.blocks * block_matmul(config) + attention_flops(config) // 3
