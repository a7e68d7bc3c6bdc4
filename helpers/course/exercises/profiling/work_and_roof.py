"""The exercises of the profiling track, and how an answer to each is examined."""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from helpers.course.exercise import Exercise, Finding, Symptom

TOLERANCE = 1e-9


@dataclass(frozen=True)
class Product:
    """One input: C (m, n) = A (m, k) · B (k, n) in `dtype`, on a machine with two roofs."""

    m: int
    k: int
    n: int
    dtype: str
    peak: float
    bandwidth: float

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return {"float32": 4, "bfloat16": 2, "float64": 8}[self.dtype]

    def __str__(self) -> str:
        return (
            f"({self.m}, {self.k}) · ({self.k}, {self.n}) in {self.dtype}, peak {self.peak:.3g} FLOP/s, "
            f"bandwidth {self.bandwidth:.3g} B/s"
        )


def work_counted(product: Product) -> tuple[int, int]:
    """(FLOP, bytes) of a product, counted on tensors without memory: the oracle of profiling.1.

    FLOP by torch's own counter, bytes by the sizes of the three tensors.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    kind = getattr(torch, product.dtype)
    a = torch.empty(product.m, product.k, dtype=kind, device="meta")
    b = torch.empty(product.k, product.n, dtype=kind, device="meta")
    with FlopCounterMode(display=False) as counter:
        c = a @ b
    return counter.get_total_flops(), a.nbytes + b.nbytes + c.nbytes


def examine_attainable(answer: Callable[..., float], seed: int) -> Finding | None:
    """The first product for which `answer` is not what the two roofs allow."""
    for product in _products(seed):
        got = answer(product.m, product.k, product.n, product.element_bytes, product.peak, product.bandwidth)
        if finding := _examine(product, got):
            return finding
    return None


def _products(seed: int) -> Iterator[Product]:
    """Under the memory roof, then under the compute roof, then other element sizes, then drawn ones."""
    yield Product(1, 8, 8, "float32", 1e12, 1e9)
    yield Product(4, 6, 10, "float32", 1e12, 1e9)
    yield Product(64, 64, 64, "float32", 1e9, 1e12)
    yield Product(4, 6, 10, "bfloat16", 1e12, 1e9)
    draw = random.Random(seed)
    for _ in range(20):
        sizes = [draw.randint(1, 512) for _ in range(3)]
        dtype = draw.choice(("float32", "bfloat16", "float64"))
        yield Product(*sizes, dtype, 10 ** draw.uniform(9, 14), 10 ** draw.uniform(9, 13))


def _examine(product: Product, got: object) -> Finding | None:
    if isinstance(got, bool) or not isinstance(got, int | float):
        saw = f"{product}: got a {type(got).__name__}"
        return Finding("The answer is one number, in FLOP/s.", saw, Symptom.TYPE, 1)
    if not math.isfinite(got):
        return Finding("Roofs are finite.", f"{product}: got {got}", Symptom.NAN, 3)
    flop, moved = work_counted(product)
    slope = product.bandwidth * flop / moved
    truth = min(product.peak, slope)
    if math.isclose(got, truth, rel_tol=TOLERANCE):
        return None
    return _explain(product, got, truth, slope, flop, moved)


def _explain(product: Product, got: float, truth: float, slope: float, flop: int, moved: int) -> Finding:
    side = "memory" if slope < product.peak else "compute"
    saw = f"{product}: got {got:.4g} under the {side} roof"
    if got > truth and math.isclose(got, max(product.peak, slope), rel_tol=TOLERANCE):
        return Finding("Neither roof can be passed.", saw, Symptom.ABOVE_ROOF, 3)
    if product.element_bytes != 4 and side == "memory":  # four bytes were right: they came first
        return Finding("The bytes follow the element's size.", saw, Symptom.DTYPE, 2)
    for factor in (0.5, 2.0):
        if math.isclose(got, factor * truth, rel_tol=TOLERANCE):
            what = "A multiply and an add are two operations."
            return Finding(what, f"{saw}, {factor:g} times what it should be", Symptom.CONSTANT_FACTOR, 1)
    fewer = product.bandwidth * (flop - product.m * product.n) / moved
    if math.isclose(got, fewer, rel_tol=TOLERANCE):
        what = "By convention a sum of k products counts 2·k operations, not 2·k - 1."
        return Finding(what, saw, Symptom.OFF_BY_ONE, 1)
    return Finding("Bandwidth times work per byte, or the peak: whichever is lower.", saw, Symptom.VALUE, 2)


EXERCISES = (
    Exercise(
        id="profiling.1",
        title="Work and roof of a matrix product",
        hints=(
            "Each of the m·n results is a sum of k products: a multiply and an add for each.",
            "Count bytes as if every matrix crossed once: A and B are read, C is written. Three sizes, times the "
            "bytes of an element.",
            "Work over bytes is the arithmetic intensity. Bandwidth times intensity is one roof, the peak the other; "
            "a kernel is under both.",
        ),
        examine=examine_attainable,
    ),
)
