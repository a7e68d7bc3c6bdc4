"""How much work an operator does: FLOP and compulsory bytes from its input shapes.

An addition, a multiplication, a division, a comparison, a root and an exponential each count as one FLOP; a
multiply-add counts as two. Compulsory bytes are those that must be moved whatever the kernel does: each input
read once, each result written once. What a kernel moves beyond that is traffic that a better one avoids.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from helpers.profiling.trace import Event


@dataclass(frozen=True)
class Work:
    """flop: floating-point operations. bytes: what must be moved at least, each tensor once."""

    flop: int
    bytes: int

    @property
    def intensity(self) -> float:
        """Arithmetic intensity, FLOP per byte; infinite when nothing has to be moved."""
        return self.flop / self.bytes if self.bytes else math.inf

    def __add__(self, other: "Work") -> "Work":
        """Both, one after the other: a fused kernel needs fewer bytes than this sum (see `fused`)."""
        return Work(self.flop + other.flop, self.bytes + other.bytes)


def fused(parts: list[Work], between: int) -> Work:
    """The parts as one kernel: `between` bytes are each written by one part and read by a later one no more.

    Each tensor between two parts costs its bytes twice unfused, and nothing fused.
    """
    whole = sum(parts, Work(0, 0))
    return Work(whole.flop, whole.bytes - 2 * between)


def matmul(m: int, k: int, n: int, element_bytes: int, batch: int = 1, added: int = 0, out_bytes: int = 0) -> Work:
    """C (m, n) = A (m, k) · B (k, n), `batch` times: 2·m·k·n FLOP; A and B read, C written.

    added: elements of a bias that is read too (its additions are not counted, as a product starts from it).
    out_bytes: bytes of an element of C, where it is not that of A and B (fp8 in, bf16 out).
    """
    out = (out_bytes or element_bytes) * batch * m * n
    return Work(2 * batch * m * k * n, element_bytes * (batch * (m * k + k * n) + added) + out)


def attended(queries: int, keys: int, causal: bool) -> int:
    """Pairs of a query and a key that it sees: all, or with `causal` keys 0 … i of query i, as torch aligns them."""
    if not causal:
        return queries * keys
    full = min(queries, keys)
    return full * (full + 1) // 2 + (queries - full) * keys


def attention(
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    width: int,
    element_bytes: int,
    causal: bool = False,
    kv_heads: int = 0,
    value_width: int = 0,
    statistics: bool = False,
) -> Work:
    """Softmax(Q·Kᵀ)·V of `width` features a head: two matmuls a head, 4·queries·keys·width FLOP.

    Without the softmax, which is a small part; with `causal` only the pairs that a query sees (torch's counter
    counts them all). Q, K and V are read and the result is written, but the scores never reach memory in a
    fused kernel. kv_heads: heads of K and V where several query heads share one. value_width: features of V
    where they differ. statistics: the log-sum-exp of each query is written too, fp32, as training needs it.
    Source: Dao, FlashAttention, 2022, §3.
    """
    shared, values = kv_heads or heads, value_width or width
    flop = 2 * batch * heads * attended(queries, keys, causal) * (width + values)
    moved = heads * queries * (width + values) + shared * keys * (width + values)
    return Work(flop, element_bytes * batch * moved + 4 * batch * heads * queries * statistics)


def attention_backward(
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    width: int,
    element_bytes: int,
    causal: bool = False,
    kv_heads: int = 0,
    value_width: int = 0,
) -> Work:
    """The gradients of `attention`: five matmuls a head, the first of which computes the scores again.

    Q·Kᵀ again, dP = dO·Vᵀ, dV = Pᵀ·dO, dQ = dS·K, dK = dSᵀ·Q. Q, K, V, the result, its gradient and the
    log-sum-exp (fp32) are read; three gradients are written. Source: Dao, FlashAttention, 2022, algorithm 4.
    """
    shared, values = kv_heads or heads, value_width or width
    flop = 2 * batch * heads * attended(queries, keys, causal) * (3 * width + 2 * values)
    moved = heads * queries * (2 * width + 2 * values) + 2 * shared * keys * (width + values)
    return Work(flop, element_bytes * batch * moved + 4 * batch * heads * queries)


def convolution(
    batch: int, channels: int, filters: int, kernel: tuple[int, ...], out: tuple[int, ...], groups: int = 1
) -> int:
    """FLOP of a convolution: each of batch·filters·out results sums channels/groups·kernel products."""
    return 2 * batch * filters * math.prod(out) * (channels // groups) * math.prod(kernel)


def elementwise(elements: int, reads: int, element_bytes: int, flop_per_element: int = 1) -> Work:
    """`reads` tensors of `elements` in, one out."""
    return Work(flop_per_element * elements, (reads + 1) * elements * element_bytes)


def softmax(rows: int, width: int, element_bytes: int, log: bool = False) -> Work:
    """Softmax of `rows` of `width`: maximum, difference, exponential, sum and quotient of each element.

    With `log` the quotient becomes one logarithm a row and one difference an element.
    """
    return Work(rows * (5 * width - 2 + log), 2 * rows * width * element_bytes)


def softmax_backward(rows: int, width: int, element_bytes: int) -> Work:
    """Gradient of `softmax`, with or without log: the result and its gradient are read, one tensor written."""
    return Work(rows * (4 * width - 1), 3 * rows * width * element_bytes)


def rms_norm(rows: int, width: int, element_bytes: int, statistics: bool = False) -> Work:
    """x·w / √(mean x² + ε) over rows of `width`: square, sum, two products an element; x and w read.

    statistics: the reciprocal root of each row is written too, fp32, as training needs it.
    """
    moved = element_bytes * (2 * rows * width + width)
    return Work(rows * (4 * width + 2), moved + 4 * rows * statistics)


def rms_norm_backward(rows: int, width: int, element_bytes: int) -> Work:
    """Gradients of `rms_norm` for x and w: x, dy, w and the row's root read, dx and dw written.

    With x̂ = x·r and g = dy·w: dx = r·(g − x̂·mean(g·x̂)), dw = Σ dy·x̂.
    """
    moved = element_bytes * (3 * rows * width + 2 * width) + 4 * rows
    return Work(rows * 8 * width + (rows - 1) * width, moved)


def layer_norm(rows: int, width: int, element_bytes: int, statistics: bool = False) -> Work:
    """(x − mean)·w / √(variance + ε) + b over rows of `width`; x, w and b read.

    statistics: mean and reciprocal root of each row are written too, as training needs them.
    """
    moved = element_bytes * (2 * rows * width + 2 * width + 2 * rows * statistics)
    return Work(rows * (7 * width + 2), moved)


def layer_norm_backward(rows: int, width: int, element_bytes: int) -> Work:
    """Gradients of `layer_norm` for x, w and b: x, dy, w and two values a row read, dx, dw and db written.

    With x̂ = (x − mean)·r and g = dy·w: dx = r·(g − mean(g) − x̂·mean(g·x̂)), dw = Σ dy·x̂, db = Σ dy.
    """
    moved = element_bytes * (3 * rows * width + 3 * width + 2 * rows)
    return Work(rows * 11 * width + 2 * (rows - 1) * width, moved)


def cross_entropy(rows: int, vocabulary: int, element_bytes: int, target_bytes: int = 8) -> Work:
    """Mean loss of `rows` of logits in one kernel: log-softmax and one value a row; logits and targets read."""
    moved = rows * (vocabulary * element_bytes + target_bytes) + element_bytes
    return Work(softmax(rows, vocabulary, element_bytes, log=True).flop + 2 * rows, moved)


def cross_entropy_backward(rows: int, vocabulary: int, element_bytes: int, target_bytes: int = 8) -> Work:
    """Gradient of the logits from the logits and the row's log-sum-exp (fp32): softmax − one-hot, over rows."""
    moved = rows * (2 * vocabulary * element_bytes + target_bytes + 4)
    return Work(rows * (3 * vocabulary + 1), moved)


def adamw(parameters: int, element_bytes: int = 4, state_bytes: int = 4) -> Work:
    """One AdamW step in one kernel: parameter, gradient and two moments read, all but the gradient written.

    14 FLOP a parameter: decay 1, first moment 3, second 4, denominator 3, step 3. Source: Loshchilov, Hutter,
    Decoupled Weight Decay Regularization, 2019, algorithm 2, with the scalars computed once.
    """
    return Work(14 * parameters, parameters * (3 * element_bytes + 4 * state_bytes))


# FLOP an element, of operators that read one, two or three tensors of the result's shape.
ONE_INPUT = {
    "silu": 4,
    "gelu": 5,
    "sigmoid": 4,
    "tanh": 1,
    "relu": 1,
    "clamp_min": 1,
    "exp": 1,
    "sqrt": 1,
    "rsqrt": 1,
    "neg": 1,
    "reciprocal": 1,
    "pow": 1,
}
TWO_INPUTS = {
    "add": 1,
    "sub": 1,
    "mul": 1,
    "div": 1,
    "lerp": 3,
    "silu_backward": 9,
    "gelu_backward": 11,
    "sigmoid_backward": 3,
    "tanh_backward": 3,
    "threshold_backward": 1,
}
THREE_INPUTS = {"addcmul": 3, "addcdiv": 3}
ATTENTION = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)
Shapes = tuple[tuple[int, ...], ...]


def work_of(event: Event) -> Work | None:
    """The work of one operator call, or None for an operator without a model or without shapes.

    Only operators that do the work themselves have a model: `aten::linear` calls `aten::mm`, which
    has. Attention is counted over all keys: a trace does not say in its shapes whether it was causal.
    Of `_fused_adamw_` the states count as fp32, because a trace records no type within a list.
    """
    if not event.name.startswith("aten::"):
        return None
    name = event.name.removeprefix("aten::")
    if name == "_fused_adamw_":
        return _adamw_of(event.shapes)
    size = next((size for size in event.bytes_per_element if size), 0)
    if not event.shapes or not event.shapes[0] or not size or not _plain(event.shapes):
        return None
    if name in MODELS:
        return MODELS[name](event.shapes, size)
    return _elementwise_of(name.removesuffix("_"), event.shapes, event.bytes_per_element)


def _plain(shapes: Shapes) -> bool:
    return all(isinstance(extent, int) and extent >= 0 for shape in shapes for extent in shape)


def _matmul_of(first: int, rank: int, added: int | None = None) -> Callable[[Shapes, int], Work | None]:
    """A model that reads A and B from inputs `first` and `first` + 1, each of `rank` dimensions."""

    def model(shapes: Shapes, size: int) -> Work | None:
        if len(shapes) < first + 2:
            return None
        a, b = shapes[first], shapes[first + 1]
        if len(a) != rank or len(b) != rank or a[-1] != b[-2] or a[:-2] != b[:-2]:
            return None
        bias = math.prod(shapes[added]) if added is not None else 0
        return matmul(a[-2], a[-1], b[-1], size, math.prod(a[:-2]), bias)

    return model


def _attention_of(shapes: Shapes, size: int) -> Work | None:
    """(batch, heads, sequence, width) each of Q, K and V."""
    if len(shapes) < 3 or any(len(shape) != 4 for shape in shapes[:3]):
        return None
    (batch, heads, queries, width), (_, shared, keys, _), (*_, values) = shapes[:3]
    return attention(batch, heads, queries, keys, width, size, False, shared, values, statistics=True)


def _attention_backward_of(shapes: Shapes, size: int) -> Work | None:
    """The gradient of the result, then Q, K and V."""
    if len(shapes) < 4 or any(len(shape) != 4 for shape in shapes[1:4]):
        return None
    (batch, heads, queries, width), (_, shared, keys, _), (*_, values) = shapes[1:4]
    return attention_backward(batch, heads, queries, keys, width, size, False, shared, values)


def _sequence_first(model: Callable[[Shapes, int], Work | None]) -> Callable[[Shapes, int], Work | None]:
    """The same for (batch, sequence, heads, width), as the flash kernels take them."""

    def of(shapes: Shapes, size: int) -> Work | None:
        swapped = (tuple(shape[i] for i in (0, 2, 1, 3)) if len(shape) == 4 else shape for shape in shapes)
        return model(tuple(swapped), size)

    return of


def _norm_of(model: Callable[..., Work], weight: int, **options) -> Callable[[Shapes, int], Work | None]:
    """A model over rows; the normalised shape is that of input number `weight`."""

    def of(shapes: Shapes, size: int) -> Work | None:
        width = math.prod(shapes[weight]) if len(shapes) > weight and shapes[weight] else 0
        elements = math.prod(shapes[0])
        if not width or not elements or elements % width:
            return None
        return model(elements // width, width, size, **options)

    return of


def _last_of(model: Callable[..., Work], **options) -> Callable[[Shapes, int], Work | None]:
    """A model over the last dimension, which is where models apply their softmax."""

    def of(shapes: Shapes, size: int) -> Work | None:
        return model(math.prod(shapes[0][:-1]), shapes[0][-1], size, **options) if shapes[0][-1] else None

    return of


MODELS: dict[str, Callable[[Shapes, int], Work | None]] = {
    "mm": _matmul_of(0, 2),
    "addmm": _matmul_of(1, 2, added=0),
    "bmm": _matmul_of(0, 3),
    "baddbmm": _matmul_of(1, 3, added=0),
    **dict.fromkeys(ATTENTION, _attention_of),
    **dict.fromkeys((f"{name}_backward" for name in ATTENTION), _attention_backward_of),
    **dict.fromkeys(("_flash_attention_forward", "_efficient_attention_forward"), _sequence_first(_attention_of)),
    **dict.fromkeys(
        ("_flash_attention_backward", "_efficient_attention_backward"), _sequence_first(_attention_backward_of)
    ),
    "_softmax": _last_of(softmax),
    "_log_softmax": _last_of(softmax, log=True),
    "_softmax_backward_data": _last_of(softmax_backward),
    "_log_softmax_backward_data": _last_of(softmax_backward),
    "_fused_rms_norm": _norm_of(rms_norm, 2, statistics=True),
    "_fused_rms_norm_backward": _norm_of(rms_norm_backward, 4),
    "native_layer_norm": _norm_of(layer_norm, 2, statistics=True),
    "native_layer_norm_backward": _norm_of(layer_norm_backward, 5),
}


def _elementwise_of(name: str, shapes: Shapes, sizes: tuple[int, ...]) -> Work | None:
    """Tensors that broadcast to the result's shape; a Python number among the inputs moves nothing."""
    inputs, flop = next(
        ((count, table[name]) for count, table in _ELEMENTWISE if name in table and len(shapes) >= count), (0, 0)
    )
    read = [shape for shape, size in zip(shapes[:inputs], sizes) if size]
    out = _broadcast(read)
    if not read or not inputs or out is None:
        return None
    size = sizes[0] or next(size for size in sizes if size)
    moved = sum(math.prod(shape) * size for shape, size in zip(shapes[:inputs], sizes) if size)
    return Work(flop * math.prod(out), moved + math.prod(out) * size)


_ELEMENTWISE = ((1, ONE_INPUT), (2, TWO_INPUTS), (3, THREE_INPUTS))


def _broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...] | None:
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    out = tuple(max(extents) if 0 not in extents else 0 for extents in zip(*padded))
    fits = all(extent in (1, whole) for shape in padded for extent, whole in zip(shape, out))
    return out if fits else None


def _adamw_of(shapes: tuple) -> Work | None:
    """The first input is the list of parameters, each with its shape."""
    if not shapes or not shapes[0] or not all(isinstance(shape, tuple) and _plain((shape,)) for shape in shapes[0]):
        return None
    return adamw(sum(math.prod(shape) for shape in shapes[0]))
