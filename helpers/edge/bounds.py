"""How far from the truth a kernel's fp32 results may be: a bound for each kernel family.

Each function takes a kernel's inputs, computes in float64, and returns an absolute bound for each
element of the result. A sum of n terms in whatever order a device chooses carries γ_n = n·u / (1 - n·u),
with u = 2⁻²⁴; Higham, Accuracy and Stability of Numerical Algorithms, sections 3.1, 3.5 and 4.2.
Addition and multiplication are correctly rounded. `exp` is within 3 + 2·|x| ulp, division within
2.5 ulp, `inversesqrt` within 2 ulp; Vulkan specification, "Precision of Individual Operations" in
the appendix "Vulkan Environment for SPIR-V". One ulp is at most 2·u of the value.
"""

import numpy as np

from helpers.errors import CourseError

UNIT_ROUNDOFF = 2.0**-24  # of fp32
ULP = 2 * UNIT_ROUNDOFF
DIVISION, INVERSE_SQUARE_ROOT = 2.5 * ULP, 2 * ULP
TINY = 2.0**-126  # the least normal fp32 value: a device may flush what is smaller to zero


class BoundError(CourseError):
    """A bound that would bound nothing."""


def gamma(n: int | np.ndarray) -> float | np.ndarray:
    """γ_n = n·u / (1 - n·u), the relative error that n roundings can add up to.

    Raises `BoundError` where n·u reaches 1, and nothing is bounded.
    """
    if np.any(np.asarray(n) * UNIT_ROUNDOFF >= 1):
        raise BoundError(f"{np.max(n)} roundings of 2⁻²⁴ bound nothing", mend="sum in blocks, or in float64")
    return n * UNIT_ROUNDOFF / (1 - n * UNIT_ROUNDOFF)


def error_ratio(result, truth, bound) -> float:
    """The largest error in units of its bound: at most 1 when correct.

    Where the bound is zero the result must be exact. NaN and infinity in the result give infinity.
    """
    result, truth, bound = (np.asarray(x, dtype=np.float64) for x in (result, truth, bound))
    if result.shape != truth.shape or not np.isfinite(result).all():
        return float("inf")
    error = np.abs(result - truth)
    bound = np.broadcast_to(bound, error.shape)
    ratio = np.divide(error, bound, out=np.where(error > 0, np.inf, 0.0), where=bound > 0)
    return float(ratio.max(initial=0.0))


def saxpy_bound(alpha: float, x, y) -> np.ndarray:
    """Of alpha·x + y: two roundings, or one where the device fuses them."""
    return gamma(2) * (np.abs(alpha * _wide(x)) + np.abs(_wide(y)))


def sum_bound(x, depth: int | None = None) -> float:
    """Of the sum of x. depth: the longest chain of additions, at most all of them, the default.

    A term passes through no more than `depth` roundings: Higham, section 4.2, for sums along a tree.
    """
    x = _wide(x)
    longest = x.size - 1
    return float(gamma(longest if depth is None else min(depth, longest)) * np.abs(x).sum())


def scan_bound(x, depth: int | None = None) -> np.ndarray:
    """Of the inclusive sums of x (n,): for the i-th, counted from 0, γ of i or of `depth` times Σ|x|."""
    x = _wide(x)
    roundings = np.arange(x.size)
    return gamma(roundings if depth is None else np.minimum(roundings, depth)) * np.cumsum(np.abs(x))


def dot_bound(a, b) -> np.ndarray:
    """Of A (m, k) · B (k, n) with fp32 products and sums, in any order: γ_k · |A|·|B|.

    It holds for fp16 inputs too: a product of two has 22 bits and is exact in fp32.
    """
    a, b = np.abs(_wide(a)), np.abs(_wide(b))
    return gamma(a.shape[-1]) * (a @ b)


def softmax_bound(x, steps: int) -> np.ndarray:
    """Of softmax over the last axis of x, kept online. steps: the most values that one invocation reads.

    With d = x - max(x), an exponential is off by (u + 2·ulp)·|d| for the difference and the argument,
    and by 3 ulp. The sum is corrected at most once a step, by exponentials whose arguments add up to
    at most |d|, and twice when lanes and subgroups merge. Each correction costs 3 ulp and a rounding.
    """
    x = _wide(x)
    distance = x - x.max(axis=-1, keepdims=True)
    with np.errstate(under="ignore", invalid="ignore"):
        truth = np.exp(distance)
    distance = np.where(truth < TINY, 0.0, np.abs(distance))  # what may be flushed to zero is bounded by TINY
    once = 3 * ULP + (UNIT_ROUNDOFF + 2 * ULP) * distance
    corrections = (steps + 2) * (3 * ULP + UNIT_ROUNDOFF)
    total = truth.sum(axis=-1, keepdims=True)
    of_sum = (truth * (once + corrections)).sum(axis=-1, keepdims=True) / total + gamma(x.shape[-1])
    relative = _compound(once, of_sum, np.full_like(once, DIVISION))
    return relative * truth / total + (x.shape[-1] + 2) * TINY


def rmsnorm_bound(x, weight, epsilon: float, residual=None) -> np.ndarray:
    """Of x / sqrt(mean(x²) + epsilon) · weight over the last axis, x being x + residual where that is given.

    Squares are positive, so that their sum is off by γ_{n+1} of itself; the mean by a division more,
    epsilon by a rounding more. The root halves that, and costs 2 ulp; two products follow. A rounded
    sum with the residual shifts each element by u, and the root by u.
    """
    x = _wide(x) if residual is None else _wide(x) + _wide(residual)
    n = x.shape[-1]
    truth = np.abs(rmsnorm(x, weight, epsilon))
    shift = 0.0 if residual is None else 2 * UNIT_ROUNDOFF
    of_root = (gamma(n + 1) + DIVISION + UNIT_ROUNDOFF) / 2
    return _compound(of_root, INVERSE_SQUARE_ROOT, gamma(2), shift) * truth + n * TINY


def dequant_matvec_bound(weights, x) -> np.ndarray:
    """Of W (rows, k) · x (k,) with W = scale·(q - zero), whose difference is exact.

    A term is multiplied by x and, within its group's sum, by the scale, and added at most k times:
    γ_{k+2}. weights: what the integers stand for.
    """
    weights = np.abs(_wide(weights))
    return gamma(weights.shape[1] + 2) * (weights @ np.abs(_wide(x)))


def attention_bound(q, keys, values, scale: float, steps: int) -> np.ndarray:
    """Of softmax(scale · q·Kᵀ)·V for each query head, kept online. steps: the most keys that one subgroup reads.

    q (heads, d). keys, values (n, key heads, d). A score is off by δ = γ_{d+2}·scale·|q|·|k|, and the
    largest by as much, so that an exponential is off by exp(2·max δ) - 1 besides what `softmax_bound`
    counts. Both the sum of the weights and the weighted values carry that, and γ_n.
    """
    q, keys, values = _wide(q), *(spread_heads(_wide(x), len(q)) for x in (keys, values))
    n, size = keys.shape[1], q.shape[-1]
    scores = scale * np.einsum("hd,hnd->hn", q, keys)
    delta = gamma(size + 2) * scale * np.einsum("hd,hnd->hn", np.abs(q), np.abs(keys))
    shares = softmax(scores)
    distance = scores.max(axis=1, keepdims=True) - scores + 2 * delta.max(axis=1, keepdims=True)
    of_score = np.expm1(2 * delta.max(axis=1, keepdims=True))
    distance = np.minimum(distance, -np.log(TINY))  # what lies farther may be flushed to zero
    corrections = (steps + 1) * (3 * ULP + UNIT_ROUNDOFF)
    once = _compound(of_score, 3 * ULP + (UNIT_ROUNDOFF + 2 * ULP) * distance, corrections, gamma(n + 1))
    of_sum = (shares * once).sum(axis=1, keepdims=True)
    relative = _compound(once, of_sum, DIVISION)
    return np.einsum("hn,hnd->hd", relative * shares + TINY, np.abs(values))


def softmax(x) -> np.ndarray:
    """Softmax over the last axis in float64: the truth that `softmax_bound` goes with."""
    x = _wide(x)
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def rmsnorm(x, weight, epsilon: float) -> np.ndarray:
    """x / sqrt(mean(x²) + epsilon) · weight over the last axis in float64."""
    x = _wide(x)
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + epsilon) * _wide(weight)


def attention(q, keys, values, scale: float) -> np.ndarray:
    """softmax(scale · q·Kᵀ)·V for each query head in float64. q (heads, d); keys, values (n, key heads, d)."""
    q, keys, values = _wide(q), *(spread_heads(_wide(x), len(q)) for x in (keys, values))
    shares = softmax(scale * np.einsum("hd,hnd->hn", q, keys))
    return np.einsum("hn,hnd->hd", shares, values)


def spread_heads(cache: np.ndarray, heads: int) -> np.ndarray:
    """A cache (n, key heads, d) as (heads, n, d): neighbouring query heads share a key head."""
    return np.repeat(cache, heads // cache.shape[1], axis=1).transpose(1, 0, 2)


def _wide(x) -> np.ndarray:
    return np.asarray(x, dtype=np.float64)


def _compound(*relative) -> np.ndarray | float:
    """The relative error of a product and quotient of parts that are off by these: Π 1/(1 - ε) - 1."""
    left = np.prod(np.broadcast_arrays(*(1 - np.asarray(part, dtype=np.float64) for part in relative)), axis=0)
    if np.any(left <= 0):
        raise BoundError("relative errors reach 1 and bound nothing", mend="use smaller inputs, or float64")
    return 1 / left - 1
