"""Exercise profiling.5: FLOP and bytes of attention, as three kernels and as one."""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Real

from helpers.course.exercise import Exercise, Finding, Symptom

DTYPES = {1: "int8", 2: "bfloat16", 4: "float32", 8: "float64"}
FLOP, BYTES, FUSED, SHARED, CAUSAL = 1, 2, 3, 4, 5


@dataclass(frozen=True)
class Attention:
    """One input. Q is (batch, heads, queries, width), K and V are (batch, kv_heads, keys, width).

    kv_heads divides heads: each head of K and V serves heads / kv_heads heads of Q. causal: query i sees keys
    0 … i only; then there are as many queries as keys.
    """

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    width: int
    element_bytes: int
    causal: bool = False

    def __str__(self) -> str:
        shared = f" on {self.kv_heads} of K and V" if self.kv_heads != self.heads else ""
        return (
            f"{self.batch} × {self.heads} heads{shared}, {self.queries} queries, {self.keys} keys, "
            f"width {self.width}, {self.element_bytes} B an element{', causal' if self.causal else ''}"
        )


def attention_counted(sizes: Attention, fused: bool) -> tuple[int, int]:
    """(FLOP, bytes) of attention, counted on tensors without memory: the oracle of profiling.5.

    FLOP of the two products by torch's counter; of a causal fused kernel the share of pairs that a mask leaves.
    Bytes by the sizes of what each kernel reads and writes.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    def empty(heads: int, tokens: int) -> torch.Tensor:
        kind = getattr(torch, DTYPES[sizes.element_bytes])
        return torch.empty(sizes.batch * sizes.kv_heads, heads * tokens, sizes.width, dtype=kind, device="meta")

    q = empty(sizes.heads // sizes.kv_heads, sizes.queries)  # the query heads that share a key are rows of one
    k, v = empty(1, sizes.keys), empty(1, sizes.keys)
    with FlopCounterMode(display=False) as counter:
        scores = q @ k.transpose(1, 2)
        shares = torch.empty_like(scores)
        out = shares @ v
    flop = counter.get_total_flops()
    if not fused:
        moved = (q, k, scores), (scores, shares), (shares, v, out)
        return flop, sum(tensor.nbytes for kernel in moved for tensor in kernel)
    if sizes.causal:
        pairs = sizes.queries * sizes.keys
        flop = flop * int(torch.ones(sizes.queries, sizes.keys).tril().sum()) // pairs
    return flop, sum(tensor.nbytes for tensor in (q, k, v, out))


def examine_attention(answer: Callable[[Attention, bool], tuple[int, int]], seed: int) -> Finding | None:
    """The first attention of which `answer` tells other FLOP or bytes than were counted."""
    for sizes, fused in _cases(seed):
        got = answer(sizes, fused)
        if finding := _examine(sizes, fused, got):
            return finding
    return None


def _cases(seed: int) -> Iterator[tuple[Attention, bool]]:
    """One head, then more, fused, another element, shared heads, causal, and drawn ones."""
    yield Attention(1, 1, 1, 2, 3, 4, 4), False
    yield Attention(3, 5, 5, 5, 7, 4, 4), False
    yield Attention(3, 5, 5, 5, 7, 4, 4), True
    yield Attention(3, 5, 5, 5, 7, 4, 2), True
    yield Attention(3, 6, 2, 5, 7, 4, 4), True
    yield Attention(1, 2, 2, 6, 6, 4, 4, causal=True), True
    yield Attention(1, 2, 2, 6, 6, 4, 4, causal=True), False
    draw = random.Random(seed)
    for _ in range(12):
        kv_heads, group, tokens = draw.randint(1, 4), draw.randint(1, 4), draw.randint(1, 300)
        causal = draw.random() < 0.5
        queries = tokens if causal else draw.choice((1, draw.randint(1, 300)))
        size = draw.choice((2, 4, 8))
        yield (
            Attention(
                draw.randint(1, 4), kv_heads * group, kv_heads, queries, tokens, 8 * draw.randint(1, 16), size, causal
            ),
            draw.random() < 0.6,
        )


def _examine(sizes: Attention, fused: bool, got: object) -> Finding | None:
    kernels = "one kernel" if fused else "three kernels"
    where = f"{sizes}, {kernels}"
    if not isinstance(got, tuple | list) or len(got) != 2 or not all(_is_number(number) for number in got):
        return Finding("The answer is a pair of numbers: FLOP, bytes.", f"{where}: got {_kind(got)}", Symptom.TYPE, 1)
    if not all(math.isfinite(number) for number in got):
        return Finding("Work is finite.", f"{where}: got {got}", Symptom.NAN, 1)
    flop, moved = attention_counted(sizes, fused)
    if got[0] != flop:
        return _explain_flop(sizes, f"{where}: got {got[0]:,} FLOP", got[0], flop, fused)
    if got[1] != moved:
        return _explain_bytes(sizes, f"{where}: got {got[1]:,} B", got[1], moved, fused)
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _kind(got: object) -> str:
    if isinstance(got, tuple | list):
        return f"a {type(got).__name__} of {', '.join(type(value).__name__ for value in got) or 'nothing'}"
    return f"a {type(got).__name__}"


def _explain_flop(sizes: Attention, saw: str, got: float, flop: int, fused: bool) -> Finding:
    if sizes.causal and fused:
        rule = "A causal fused kernel computes the pairs that a query sees, and each query sees itself."
        row = 4 * sizes.batch * sizes.heads * sizes.width * sizes.queries
        near = abs(got - flop) <= row and got != flop
        return Finding(rule, saw, Symptom.OFF_BY_ONE if near else Symptom.VALUE, CAUSAL)
    if sizes.causal:
        return Finding("Without fusion all pairs are computed, and some are masked.", saw, Symptom.VALUE, CAUSAL)
    if got in (flop / 2, flop / 4, 2 * flop):
        rule = "Two products, and a multiply and an add are two operations."
        return Finding(rule, f"{saw}, {got / flop:g} times what it should be", Symptom.CONSTANT_FACTOR, FLOP)
    return Finding("Only the two products count, for every head and sequence.", saw, Symptom.VALUE, FLOP)


def _explain_bytes(sizes: Attention, saw: str, got: float, moved: int, fused: bool) -> Finding:
    if sizes.element_bytes != 4 and got == moved // sizes.element_bytes * 4:  # four bytes were right: they came first
        return Finding("The bytes follow the element's size.", saw, Symptom.DTYPE, BYTES)
    if got * sizes.element_bytes == moved or got in (moved / 2, 2 * moved):
        saw = f"{saw}, {got / moved:g} times what it should be"
        return Finding(
            "The answer counts bytes, each tensor of each kernel once.", saw, Symptom.CONSTANT_FACTOR, BYTES
        )
    if fused and got > moved:
        if sizes.kv_heads != sizes.heads:
            rule = "K and V are read once for all the heads that share them."
            return Finding(rule, saw, Symptom.TRAFFIC, SHARED)
        rule = "In one kernel the scores never reach memory."
        return Finding(rule, saw, Symptom.TRAFFIC, FUSED)
    rule = "Each kernel reads its inputs from memory and writes its result to it."
    return Finding(rule, saw, Symptom.VALUE, CAUSAL if sizes.causal else FUSED if fused else BYTES)


EXERCISES = (
    Exercise(
        id="profiling.5",
        title="FLOP and bytes of attention",
        hints=(
            "A head is two products: Q·Kᵀ, of (queries, width) and (width, keys), and the shares times V. You know "
            "the FLOP of a product. The softmax between them does not count here.",
            "Unfused there are three kernels. Write down for each which tensors it reads and which it writes, with "
            "their shapes. The scores have a row for each query and a column for each key, in every head.",
            "Fused, what one part hands to the next stays on the chip. Only what comes from outside is read, and "
            "only the result is written.",
            "K and V have kv_heads heads. Scores, Q and the result have one for each query head.",
            "Query 0 sees one key, query 1 sees two, the last sees all. Add them up. A mask applied after a product "
            "saves nothing of that product, and it spares no K or V from being read.",
        ),
        examine=examine_attention,
    ),
)
