"""Every kernel family against float64: the largest error in units of its bound, for a size and a seed.

Run as a program, it prints all of them for one device as JSON: `kernel_cases.py NAME [DRIVER]`.
"""

import json
import sys

import numpy as np

from helpers.edge import bounds, kernels
from helpers.edge.vulkan import driver, open_device

SIZES = (1, 2, 31, 64, 257, 5000)  # what the portable run takes; none of the large ones divides a workgroup


def draw(seed, *shape, spread=1.0):
    return (spread * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def saxpy(device, n, seed=0):
    x, y = draw(seed, 2, n)
    buffer = device.upload(y)
    kernels.Saxpy(device, 1.5).run(device.upload(x), buffer)
    return bounds.error_ratio(buffer.array(), 1.5 * x.astype(float) + y, bounds.saxpy_bound(1.5, x, y))


def reduction(way, operation):
    def case(device, n, seed=0):
        x, result = draw(seed, n), device.buffer(1)
        reduction = kernels.Reduction(device, way, operation)
        reduction.run(device.upload(x), result)
        if operation == "maximum":
            return bounds.error_ratio(result.array(), x.max(keepdims=True), 0)
        return bounds.error_ratio(result.array(), [x.sum(dtype=float)], bounds.sum_bound(x, reduction.depth(n)))

    return case


def scan(way):
    def case(device, n, seed=0):
        x, y = draw(seed, n), device.buffer(n)
        scan = kernels.Scan(device, way, group=32, items=2)
        scan.run(device.upload(x), y)
        return bounds.error_ratio(y.array(), np.cumsum(x, dtype=float), bounds.scan_bound(x, scan.depth(n)))

    return case


def softmax(device, n, seed=0):
    x = draw(seed, 3, n, spread=4)
    x[1, : n // 2] = -np.inf
    softmax, y = kernels.Softmax(device), device.buffer(x.shape)
    softmax.run(device.upload(x), y)
    return bounds.error_ratio(y.array(), bounds.softmax(x), bounds.softmax_bound(x, softmax.steps(n)))


def rmsnorm(device, n, seed=0):
    x, weight = draw(seed, 3, n), draw(seed + 1, n)
    y = device.buffer(x.shape)
    kernels.RmsNorm(device, 1e-6).run(device.upload(x), device.upload(weight), y)
    return bounds.error_ratio(y.array(), bounds.rmsnorm(x, weight, 1e-6), bounds.rmsnorm_bound(x, weight, 1e-6))


def rmsnorm_residual(device, n, seed=0):
    x, before, weight = draw(seed, 3, n), draw(seed + 1, 3, n), draw(seed + 2, n)
    y, residual = device.buffer(x.shape), device.upload(before)
    kernels.RmsNormResidual(device, 1e-6).run(device.upload(x), residual, device.upload(weight), y)
    truth = bounds.rmsnorm(x.astype(float) + before, weight, 1e-6)
    ratio = bounds.error_ratio(y.array(), truth, bounds.rmsnorm_bound(x, weight, 1e-6, before))
    return max(ratio, bounds.error_ratio(residual.array(), x + before, 0))


def dequant_matvec(bits):
    def case(device, n, seed=0):
        rows, k = max(1, min(n, 70)), n
        weights, x = kernels.quantise(draw(seed, rows, k), bits), draw(seed + 1, k)
        y = device.buffer(rows)
        kernels.DequantMatvec(device, bits).run(
            device.upload(weights.words), device.upload(weights.scales), device.upload(x), y
        )
        values = weights.values()
        return bounds.error_ratio(y.array(), values @ x, bounds.dequant_matvec_bound(values, x))

    return case


def many(n, most):
    """How many tokens a chunk has: any number that follows from n."""
    return int(np.random.default_rng(n).integers(1, most + 1))


def dequant_matmul(bits):
    def case(device, n, seed=0):
        tokens, rows, k = many(n, 70), max(1, min(n, 70)), min(n, 600)
        weights, x = kernels.quantise(draw(seed, rows, k), bits), draw(seed + 1, tokens, k)
        y = device.buffer((tokens, rows))
        kernels.DequantMatmul(device, bits).run(*map(device.upload, (weights.words, weights.scales, x)), y)
        values = weights.values()
        bound = bounds.dequant_matvec_bound(values, x.T).T
        return bounds.error_ratio(y.array(), x @ values.T, bound)

    return case


def dense_matmul(per_word, dtype):
    def case(device, n, seed=0):
        tokens, rows, k = many(n, 70), max(1, min(n, 70)), min(n, 600) * per_word
        weights, x = draw(seed, rows, k).astype(dtype), draw(seed + 1, tokens, k)
        y = device.buffer((tokens, rows))
        kernels.DenseMatmul(device, per_word).run(device.upload(weights.view(np.uint32)), device.upload(x), y)
        return bounds.error_ratio(y.array(), x.astype(float) @ weights.T, bounds.dot_bound(x, weights.T))

    return case


def attention_of_a_chunk(heads, key_heads, size):
    def case(device, n, seed=0):
        tokens = many(n, min(n, 9))
        q, (keys, values) = draw(seed, tokens, heads, size), draw(seed + 1, 2, n + 3, key_heads, size)
        keys[n:] = values[n:] = np.nan
        kernel, y = kernels.AttentionDecode(device, heads, key_heads, size), device.buffer(q.shape)
        kernel.run(*map(device.upload, (q, keys, values)), device.upload(np.array([n], np.uint32)), y)
        ratios = []
        for token in range(tokens):
            seen = n - tokens + 1 + token
            given = (q[token], keys[:seen], values[:seen], kernel.scale)
            bound = bounds.attention_bound(*given, kernel.steps(seen))
            ratios.append(bounds.error_ratio(y.array()[token], bounds.attention(*given), bound))
        return max(ratios)

    return case


def attention(heads, key_heads, size):
    def case(device, n, seed=0):
        q, keys, values = draw(seed, heads, size), *draw(seed + 1, 2, n + 3, key_heads, size)
        keys[n:] = values[n:] = np.nan  # a cache holds anything behind its end
        kernel, y = kernels.AttentionDecode(device, heads, key_heads, size), device.buffer(q.shape)
        length = device.upload(np.array([n], np.uint32))
        kernel.run(*map(device.upload, (q, keys, values)), length, y)
        truth = bounds.attention(q, keys[:n], values[:n], kernel.scale)
        bound = bounds.attention_bound(q, keys[:n], values[:n], kernel.scale, kernel.steps(n))
        return bounds.error_ratio(y.array(), truth, bound)

    return case


def shape_of(n, multiple=4):
    """Three sizes that follow from n: any for an odd n, for an even one such as wide loads can take."""
    step = 1 if n % 2 else multiple
    m, k, columns = np.random.default_rng(n).integers(1, 100 // step, 3)
    return (int(m), int(k) * step, int(columns) * step) if n > 2 else (n, n * step, n * step)


def matmul(rung):
    def case(device, n, seed=0):
        m, k, columns = shape_of(n)
        a, b, c = draw(seed, m, k), draw(seed + 1, k, columns), device.buffer((m, columns))
        kernels.Matmul(device, rung).run(device.upload(a), device.upload(b), c)
        return bounds.error_ratio(c.array(), a.astype(float) @ b, bounds.dot_bound(a, b))

    return case


def cooperative_f16(device, n, seed=0):
    m, k, columns = shape_of(n, 16)
    a, b = (draw(seed + i, *shape).astype(np.float16) for i, shape in enumerate([(m, k), (k, columns)]))
    c = device.buffer((m, columns))
    kernels.CooperativeMatmul(device, "f16").run(device.upload(a), device.upload(b), c)
    return bounds.error_ratio(c.array(), a.astype(float) @ b, bounds.dot_bound(a, b))


def cooperative_s8(device, n, seed=0):
    m, k, columns = shape_of(n, 16)
    a, b = (
        np.random.default_rng(seed + i).integers(-128, 128, shape, dtype=np.int8)
        for i, shape in enumerate([(m, k), (k, columns)])
    )
    c = device.buffer((m, columns), np.int32)
    kernels.CooperativeMatmul(device, "s8").run(device.upload(a), device.upload(b), c)
    return bounds.error_ratio(c.array(), a.astype(np.int64) @ b, 0)


CASES = {
    "saxpy": saxpy,
    "sum, tree": reduction("tree", "sum"),
    "sum, subgroup": reduction("subgroup", "sum"),
    "maximum, tree": reduction("tree", "maximum"),
    "maximum, subgroup": reduction("subgroup", "maximum"),
    "scan, tree": scan("tree"),
    "scan, subgroup": scan("subgroup"),
    "softmax": softmax,
    "RMSNorm": rmsnorm,
    "RMSNorm and residual": rmsnorm_residual,
    "int8 matvec": dequant_matvec(8),
    "int4 matvec": dequant_matvec(4),
    "int8 matmul": dequant_matmul(8),
    "int4 matmul": dequant_matmul(4),
    "fp32 matmul": dense_matmul(1, np.float32),
    "fp16 matmul": dense_matmul(2, np.float16),
    "attention": attention(4, 2, 24),
    "attention of a chunk": attention_of_a_chunk(4, 2, 24),
    "attention, odd head": attention(3, 1, 13),
    **{f"matmul, {rung}": matmul(rung) for rung in kernels.Rung},
    "matmul, cooperative f16": cooperative_f16,
    "matmul, cooperative s8": cooperative_s8,
}


def absent(info, name):
    """Why a device cannot run a case, or "" when it can."""
    if name.endswith(" matmul"):
        return info.why_not("subgroup_shuffle")
    if not name.startswith("matmul, "):
        return ""
    rung = name.removeprefix("matmul, ")
    if rung.startswith("cooperative"):
        return kernels.why_no_cooperative(info, rung.split()[-1])
    return kernels.why_not(info, rung)


def run_all(device):
    """Case to its largest ratio over `SIZES`, with the subgroup size and the layer's messages."""
    reasons = {name: absent(device.info, name) for name in CASES}
    ratios = {name: max(case(device, n) for n in SIZES) for name, case in CASES.items() if not reasons[name]}
    return {
        "device": device.info.name,
        "subgroup": device.subgroups.counted,
        "ratios": ratios,
        "absent": {name: reason for name, reason in reasons.items() if reason},
        "messages": [message.text for message in device.take_messages()],
    }


if __name__ == "__main__":
    name, chosen = (*sys.argv[1:], "", "")[:2]
    with open_device(name, driver=driver(chosen) if chosen else None) as opened:
        print(json.dumps(run_all(opened)))
