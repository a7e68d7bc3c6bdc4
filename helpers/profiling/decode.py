"""Prefill and decode of a transformer: FLOP, bytes, and the batch at which decode meets the ridge."""

import math
from dataclasses import dataclass

from helpers.errors import CourseError
from helpers.profiling.remedies import least_seconds, limiter
from helpers.profiling.roofline import Roofline
from helpers.profiling.work import Work, attended


class DecodeError(CourseError):
    """Sizes of which no transformer can be made, or a batch or context below 1."""


@dataclass(frozen=True)
class Sizes:
    """A decoder-only transformer in numbers.

    layers. width: of the residual stream. heads and kv_heads: of the queries and of keys and values. head: features
    of one head. hidden: of the feed-forward network, which has three matrices when `gated`, else two.
    vocabulary: rows of the output matrix.
    Raises `DecodeError` for a size below 1, or heads that kv_heads do not divide.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    head: int
    hidden: int
    vocabulary: int
    gated: bool = True

    def __post_init__(self):
        wrong = [
            name for name, value in vars(self).items() if name != "gated" and (type(value) is not int or value < 1)
        ]
        if wrong:
            raise DecodeError(f"{wrong[0]} is {getattr(self, wrong[0])!r}", mend="give whole numbers from 1")
        if self.heads % self.kv_heads:
            raise DecodeError(f"{self.kv_heads} kv heads do not divide {self.heads} heads", mend="use a divisor")

    @property
    def matrices(self) -> tuple[tuple[int, int], ...]:
        """(inputs, outputs) of the matrices of one layer, in order."""
        queries, shared = self.heads * self.head, self.kv_heads * self.head
        first = ((self.width, queries), (self.width, shared), (self.width, shared), (queries, self.width))
        return (*first, *[(self.width, self.hidden)] * (1 + self.gated), (self.hidden, self.width))

    @property
    def weights(self) -> int:
        """Weights of all matrices that multiply: of every layer, and of the output; norms and lookups are not."""
        layer = sum(rows * columns for rows, columns in self.matrices)
        return self.layers * layer + self.width * self.vocabulary


@dataclass(frozen=True)
class Bytes:
    """Bytes of one element: of a weight, of a key or value in the cache, of an activation. 0.5 is 4 bits."""

    weight: float = 2
    cache: float = 2
    activation: float = 2


@dataclass(frozen=True)
class Stage:
    """The work of one pass: of its matrices, and of its attention, which shares nothing over a batch."""

    linear: Work
    attention: Work

    @property
    def whole(self) -> Work:
        """Both together."""
        return self.linear + self.attention

    def seconds(self, roof: Roofline, launch: float = 0.0) -> float:
        """The least time, s: the two parts one after the other, each under its own limit."""
        return least_seconds(self.linear, roof, launch) + least_seconds(self.attention, roof, launch)

    def limiters(self, roof: Roofline) -> tuple[str, str]:
        """What limits the matrices, and what limits attention."""
        return limiter(self.linear, roof), limiter(self.attention, roof)


def prefill(sizes: Sizes, batch: int, tokens: int, bytes_of: Bytes = Bytes(), causal: bool = True) -> Stage:
    """All `tokens` of `batch` prompts in one pass; logits of each prompt's last token only.

    Matrices: 2 FLOP a weight and token; each is read once, its inputs and outputs go through memory. Attention:
    Q, K and V read, result written, keys and values stored in the cache; scores stay in the kernel.
    """
    _require(batch, tokens)
    linear = _linear(sizes, batch * tokens, batch, bytes_of)
    flop = 4 * batch * sizes.layers * sizes.heads * sizes.head * attended(tokens, tokens, causal)
    moved = 2 * tokens * sizes.head * ((sizes.heads + sizes.kv_heads) * bytes_of.activation)
    stored = 2 * tokens * sizes.head * sizes.kv_heads * bytes_of.cache
    return Stage(linear, Work(flop, round(batch * sizes.layers * (moved + stored))))


def decode(sizes: Sizes, batch: int, context: int, bytes_of: Bytes = Bytes()) -> Stage:
    """One token more of each of `batch` sequences, which then have `context` tokens, the new one among them.

    Matrices as in `prefill`. Attention: the cache of `context` − 1 tokens is read, the new keys and values are
    read and stored, so its bytes grow with the batch as its FLOP do.
    """
    _require(batch, context)
    return Stage(_linear(sizes, batch, batch, bytes_of), _decode_attention(sizes, batch, context, bytes_of))


def _require(batch: int, tokens: int) -> None:
    if batch < 1 or tokens < 1:
        raise DecodeError(f"a batch of {batch} with {tokens} tokens is none", mend="give whole numbers from 1")


def _linear(sizes: Sizes, tokens: int, last: int, bytes_of: Bytes) -> Work:
    """The matrices over `tokens`, and the output matrix over the `last` ones."""
    layer = sum(rows * columns for rows, columns in sizes.matrices)
    through = sum(rows + columns for rows, columns in sizes.matrices)
    flop = 2 * (tokens * sizes.layers * layer + last * sizes.width * sizes.vocabulary)
    active = tokens * sizes.layers * through + last * (sizes.width + sizes.vocabulary)
    return Work(flop, round(sizes.weights * bytes_of.weight + active * bytes_of.activation))


def _decode_attention(sizes: Sizes, batch: int, context: int, bytes_of: Bytes) -> Work:
    flop = 4 * batch * sizes.layers * sizes.heads * sizes.head * context
    cached = 2 * sizes.kv_heads * sizes.head * context * bytes_of.cache
    fresh = 2 * (sizes.heads + sizes.kv_heads) * sizes.head * bytes_of.activation
    return Work(flop, round(batch * sizes.layers * (cached + fresh)))


def crossing_batch(sizes: Sizes, roof: Roofline, context: int = 0, bytes_of: Bytes = Bytes()) -> float:
    """The batch at which a decode step meets the ridge: below it memory limits, above it compute.

    A step of batch b does b·F FLOP and moves W + b·K bytes, W those of the weights, K of one sequence. Its
    intensity b·F / (W + b·K) is the ridge R at b = R·W / (F − R·K), and nowhere when F ≤ R·K: then the cache
    and the activations keep it in memory's hands at any batch, and the answer is infinite.
    context: tokens of each sequence, 0 for the matrices alone. With a short context and bf16 weights, F is about
    2 and W 2 bytes a weight, so the batch is about the ridge itself.
    """
    if context < 0:
        raise DecodeError(f"a context of {context} tokens is none", mend="give 0 for the matrices alone, or more")
    one, two = (_step(sizes, batch, context, bytes_of) for batch in (1, 2))
    flop, each = one.flop, two.bytes - one.bytes
    weights = one.bytes - each
    left = flop - roof.ridge * each
    return roof.ridge * weights / left if left > 0 else math.inf


def _step(sizes: Sizes, batch: int, context: int, bytes_of: Bytes) -> Work:
    return decode(sizes, batch, context, bytes_of).whole if context else _linear(sizes, batch, batch, bytes_of)


def cache_bytes(sizes: Sizes, batch: int, context: int, bytes_of: Bytes = Bytes()) -> int:
    """Bytes of the keys and values of `batch` sequences of `context` tokens."""
    _require(batch, context)
    return round(2 * batch * sizes.layers * sizes.kv_heads * sizes.head * context * bytes_of.cache)
