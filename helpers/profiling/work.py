"""How much work an operator does: FLOP and compulsory bytes from its input shapes."""

import math
from dataclasses import dataclass

from helpers.profiling.trace import Event


@dataclass(frozen=True)
class Work:
    """flop: floating-point operations. bytes: what must be moved at least, each tensor once."""

    flop: int
    bytes: int

    @property
    def intensity(self) -> float:
        """Arithmetic intensity, FLOP per byte."""
        return self.flop / self.bytes


def matmul(m: int, k: int, n: int, element_bytes: int, batch: int = 1) -> Work:
    """C (m, n) = A (m, k) · B (k, n), `batch` times: 2·m·k·n FLOP; A and B read, C written."""
    return Work(2 * batch * m * k * n, batch * element_bytes * (m * k + k * n + m * n))


def attention(batch: int, heads: int, queries: int, keys: int, width: int, element_bytes: int) -> Work:
    """Softmax(Q·Kᵀ)·V of `width` features a head: two matmuls a head, 4·queries·keys·width FLOP.

    Counted over all keys, as if nothing were masked, and without the softmax, which is a small part; Q, K
    and V are read and the result is written, but the scores never reach memory in a fused kernel.
    """
    flop = 4 * batch * heads * queries * keys * width
    return Work(flop, element_bytes * batch * heads * width * (2 * queries + 2 * keys))


def elementwise(elements: int, reads: int, element_bytes: int, flop_per_element: int = 1) -> Work:
    """`reads` tensors of `elements` in, one out."""
    return Work(flop_per_element * elements, (reads + 1) * elements * element_bytes)


ONE_INPUT = {
    "aten::silu": 4,
    "aten::gelu": 8,
    "aten::_softmax": 4,
    "aten::_log_softmax": 4,
    "aten::_fused_rms_norm": 4,
}
TWO_INPUTS = ("aten::add", "aten::mul", "aten::add_", "aten::mul_", "aten::sub", "aten::div")
FORWARD_ATTENTION = (
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_efficient_attention",
)


def work_of(event: Event) -> Work | None:
    """The work of one operator call, or None for an operator without a model or without shapes.

    Only operators that do the work themselves have a model: `aten::linear` calls `aten::mm`, which
    has. FLOP per element of the pointwise operators count one for each arithmetic step.
    """
    shapes = event.shapes
    size = next((size for size in event.bytes_per_element if size), 0)
    if not shapes or not shapes[0] or not size:
        return None
    if event.name == "aten::mm" and len(shapes) >= 2 and len(shapes[1]) == 2:
        return matmul(shapes[0][0], shapes[0][1], shapes[1][1], size)
    if event.name == "aten::addmm" and len(shapes) >= 3 and len(shapes[2]) == 2:
        return matmul(shapes[1][0], shapes[1][1], shapes[2][1], size)
    if event.name == "aten::bmm" and len(shapes) >= 2 and len(shapes[1]) == 3:
        return matmul(shapes[0][1], shapes[0][2], shapes[1][2], size, batch=shapes[0][0])
    if event.name in FORWARD_ATTENTION and len(shapes) >= 2 and len(shapes[0]) == len(shapes[1]) == 4:
        batch, heads, queries, width = shapes[0]
        return attention(batch, heads, queries, shapes[1][2], width, size)
    elements = math.prod(shapes[0])
    if event.name in ONE_INPUT:
        return elementwise(elements, 1, size, ONE_INPUT[event.name])
    if event.name in TWO_INPUTS and len(shapes) >= 2 and shapes[1] == shapes[0]:
        return elementwise(elements, 2, size)
    return None
