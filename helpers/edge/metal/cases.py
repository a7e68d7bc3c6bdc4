"""Inputs for every kernel, with the truth in float64 and how far a result may be from it.

One case serves the SPIR-V and the MSL of a kernel alike: workgroups, buffers, constants and push constants
are the same. The sizes do not divide the tiles.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from helpers.edge import bounds
from helpers.edge.metal import twins
from helpers.edge.metal.errors import ArgumentsError

SIZES = (1, 37, 300)
MATRICES = ((1, 1, 1), (21, 19, 26), (33, 64, 40))


@dataclass(frozen=True)
class Case:
    """One dispatch. truths: for each buffer that is written, by place, its float64 values and their bound."""

    name: str
    groups: tuple[int, ...]
    local_size: tuple[int, ...]
    arrays: tuple[np.ndarray, ...]
    push: bytes
    constants: dict[int, int]
    truths: dict[int, tuple[np.ndarray, np.ndarray | float]]

    def run(self, simd_width: int = 32, shim: bool = False) -> tuple[np.ndarray, ...]:
        """The arrays after the MSL ran on copies of them."""
        arrays = tuple(array.copy() for array in self.arrays)
        twins.call(
            self.name,
            self.groups,
            self.local_size,
            arrays,
            self.push,
            self.constants,
            simd_width=simd_width,
            shim=shim,
        )
        return arrays

    def error(self, arrays: tuple[np.ndarray, ...]) -> float:
        """The largest error of what was written, in units of its bound: at most 1 when right."""
        return max(bounds.error_ratio(arrays[place], *truth) for place, truth in self.truths.items())


def of(name: str, lanes: int = 32) -> tuple[Case, ...]:
    """The cases of a kernel. lanes: of a subgroup. Raises `ArgumentsError` for a kernel without cases."""
    if name not in CASES:
        raise ArgumentsError(f"there are no cases for {name}", mend=f"add them to {__name__}")
    return tuple(CASES[name](lanes))


def _draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _zeros(*shape: int, dtype=np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


def _saxpy(lanes: int) -> Iterator[Case]:
    for n in SIZES:
        x, y = _draw(n, 2, n)
        truth = 1.5 * x.astype(float) + y
        push = struct.pack("<If", n, 1.5)
        bound = bounds.saxpy_bound(1.5, x, y)
        yield Case("saxpy", (-(-n // 64),), (64,), (x, y), push, {0: 64}, {1: (truth, bound)})


def _reduce(name: str) -> Callable[[int], Iterator[Case]]:
    def cases(lanes: int) -> Iterator[Case]:
        group, groups = 64, 3
        for n in SIZES:
            x = _draw(n, n)
            parts = [x[np.arange(n) // group % groups == g] for g in range(groups)]
            sums = np.array([part.sum(dtype=float) for part in parts])
            peaks = np.array([part.max(initial=-np.inf) for part in parts])
            limits = [bounds.sum_bound(part) if part.size else 0.0 for part in parts]
            arrays, push = (x, _zeros(groups)), struct.pack("<I", n)
            yield Case(name, (groups,), (group,), arrays, push, {0: group, 1: 0}, {1: (sums, np.array(limits))})
            if n > groups * group:  # else a group has nothing, and its maximum is no finite number
                yield Case(name, (groups,), (group,), arrays, push, {0: group, 1: 1}, {1: (peaks, 0.0)})

    return cases


def _scan(name: str) -> Callable[[int], Iterator[Case]]:
    def cases(lanes: int) -> Iterator[Case]:
        group, items = 32, 2
        block = group * items
        for n in SIZES:
            x, blocks = _draw(n, n), -(-n // block)
            padded = np.zeros(blocks * block)
            padded[:n] = x
            rows = padded.reshape(blocks, block)
            sums, roundings = np.cumsum(rows, axis=1), np.cumsum(np.abs(rows), axis=1) * bounds.gamma(block + items)
            truths = {1: (sums.reshape(-1)[:n], roundings.reshape(-1)[:n]), 2: (sums[:, -1], roundings[:, -1])}
            arrays = (x, _zeros(n), _zeros(blocks))
            yield Case(name, (blocks,), (group,), arrays, struct.pack("<I", n), {0: group, 1: items}, truths)

    return cases


def _scan_offsets(lanes: int) -> Iterator[Case]:
    for n in SIZES:
        block = 32
        sums, y = _draw(n, -(-n // block)), _draw(n + 1, n)
        shift = np.concatenate([[0.0], sums])[np.arange(n) // block].astype(np.float32)
        truths = {1: ((y + shift).astype(float), 0.0)}
        yield Case("scan_offsets", (-(-n // 64),), (64,), (sums, y), struct.pack("<2I", n, block), {0: 64}, truths)


def _softmax(lanes: int) -> Iterator[Case]:
    for n in SIZES:
        x = 4 * _draw(n, 3, n)
        truth = bounds.softmax(x), bounds.softmax_bound(x, -(-n // 32))
        yield Case("softmax", (3,), (32,), (x, _zeros(3, n)), struct.pack("<2I", 3, n), {0: 32}, {1: truth})


def _rmsnorm(lanes: int) -> Iterator[Case]:
    for n in SIZES:
        x, weight = _draw(n, 3, n), _draw(n + 1, n)
        truth = bounds.rmsnorm(x, weight, 1e-6), bounds.rmsnorm_bound(x, weight, 1e-6)
        arrays, push = (x, weight, _zeros(3, n)), struct.pack("<2If", 3, n, 1e-6)
        yield Case("rmsnorm", (3,), (32,), arrays, push, {0: 32}, {2: truth})


def _rmsnorm_residual(lanes: int) -> Iterator[Case]:
    for n in SIZES:
        x, before, weight = _draw(n, 3, n), _draw(n + 1, 3, n), _draw(n + 2, n)
        truth = bounds.rmsnorm(x.astype(float) + before, weight, 1e-6)
        bound = bounds.rmsnorm_bound(x, weight, 1e-6, before)
        truths = {1: ((x + before).astype(float), 0.0), 3: (truth, bound)}
        arrays, push = (x, before, weight, _zeros(3, n)), struct.pack("<2If", 3, n, 1e-6)
        yield Case("rmsnorm_residual", (3,), (32,), arrays, push, {0: 32}, truths)


def _quantised(bits: int, rows: int, k: int, group: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(words, scales, values) of a matrix (rows, k) as `helpers.edge.kernels.Quantised` lays it out."""
    draw, groups = np.random.default_rng(rows), -(-k // group)
    q = draw.integers(0, 2**bits, (rows, groups * group)).astype(np.uint32)
    halves = np.stack([draw.uniform(0.1, 1, (rows, groups)), np.full((rows, groups), 2.0 ** (bits - 1))], -1)
    halves = halves.astype(np.float16)
    scale, zero = (np.repeat(halves[..., part].astype(float), group, axis=1)[:, :k] for part in (0, 1))
    per_word = 32 // bits
    shifts = np.uint32(bits) * np.arange(per_word, dtype=np.uint32)
    words = (q.reshape(rows, -1, per_word) << shifts).sum(axis=2, dtype=np.uint32)
    packed = (words, halves.view(np.uint32)[..., 0])
    return *(np.ascontiguousarray(part.T) for part in packed), scale * (q[:, :k] - zero)


def _dequant_matvec(lanes: int) -> Iterator[Case]:
    across, parts, rows_each, group = 8, 2, 2, 16
    for bits in (4, 8):
        for rows, k in ((1, 1), (37, 52)):
            *packed, values = _quantised(bits, rows, k, group)
            x = _draw(rows + 1, k)
            arrays = (*packed, x, _zeros(rows))
            truths = {3: (values @ x, bounds.dequant_matvec_bound(values, x))}
            constants = {0: across, 1: parts, 2: bits, 3: group, 4: rows_each}
            count = -(-rows // (across * rows_each))
            push = struct.pack("<2I", rows, k)
            yield Case("dequant_matvec", (count,), (across, parts), arrays, push, constants, truths)


def _matmul_dense(lanes: int) -> Iterator[Case]:
    for per_word, dtype in ((1, np.float32), (2, np.float16)):
        for tokens, rows, k in ((1, 1, 2), (2 * lanes + 3, 7, 50)):
            weights, x = _draw(rows, rows, k).astype(dtype), _draw(k, tokens, k)
            truth = x.astype(float) @ weights.T, bounds.dot_bound(x, weights.T)
            arrays, push = (weights.view(np.uint32), x, _zeros(tokens, rows)), struct.pack("<3I", tokens, rows, k)
            groups = (-(-rows // 3), -(-tokens // (2 * lanes)))
            constants = {0: lanes, 1: per_word, 2: min(lanes, 8), 3: 3, 4: 2}
            yield Case("matmul_dense", groups, (lanes,), arrays, push, constants, {2: truth})


def _matmul_dequant(lanes: int) -> Iterator[Case]:
    for bits in (4, 8):
        for tokens, rows, k, group in ((1, 1, 1, 16), (7, 2 * lanes + 5, 52, 8)):
            words, scales, values = _quantised(bits, rows, k, group)
            x = _draw(rows + 1, tokens, k)
            truth = x @ values.T, bounds.dequant_matvec_bound(values, x.T).T
            groups = (-(-rows // (2 * lanes)), -(-tokens // 3))
            constants = {0: lanes, 1: bits, 2: group, 3: min(lanes, group), 4: 2, 5: 3}
            arrays, push = (words, scales, x, _zeros(tokens, rows)), struct.pack("<3I", tokens, rows, k)
            yield Case("matmul_dequant", groups, (lanes,), arrays, push, constants, {3: truth})


def _attention(lanes: int) -> Iterator[Case]:
    for heads, key_heads, size, n, tokens in (
        (1, 1, 1, 1, 1),
        (4, 2, 24, 37, 1),
        (3, 1, 13, 9, 1),
        (2, 1, 10, 11, 4),
    ):
        together, subgroups, capacity = heads // key_heads, 3, n + 2
        q, (keys, values) = _draw(size, tokens, heads, size), _draw(n, 2, capacity, key_heads, size)
        scale = float(np.float32(size**-0.5))
        truth, bound = np.empty(q.shape), np.empty(q.shape)
        for token, seen in enumerate(range(n - tokens + 1, n + 1)):
            given = (q[token], keys[:seen], values[:seen], scale)
            truth[token] = bounds.attention(*given)
            bound[token] = bounds.attention_bound(*given, -(-seen // subgroups))
        arrays = (q, keys, values, np.array([n], np.uint32), _zeros(tokens, heads, size))
        constants = {0: lanes * subgroups, 1: together, 2: size, 3: -(-size // lanes), 4: subgroups}
        push, groups = struct.pack("<If", capacity, scale), (key_heads, tokens)
        local = (lanes * subgroups,)
        yield Case("attention_decode", groups, local, arrays, push, constants, {4: (truth, bound)})


def _embed(lanes: int) -> Iterator[Case]:
    for positions in (0, 1):
        width, vocabulary, context, length, tokens = 70, 5, 4, 3, np.array([3, 0], np.uint32)
        table, places = _draw(1, vocabulary, width), _draw(2, context, width)
        rows = table[tokens] + places[length - len(tokens) : length] * positions
        arrays = (table, places, tokens, np.array([length], np.uint32), _zeros(len(tokens), width))
        constants, push = {0: 64, 1: positions}, struct.pack("<2I", width, len(tokens))
        truths = {4: (rows.astype(float), 0.0)}
        yield Case("embed", (3,), (64,), arrays, push, constants, truths)


def _matvec(lanes: int) -> Iterator[Case]:
    for per_word, dtype in ((1, np.float32), (2, np.float16)):
        for rows, k in ((1, 2), (21, 50)):
            weights, x = _draw(rows, rows, k).astype(dtype), _draw(k, k)
            truth = weights.astype(float) @ x, bounds.dot_bound(weights, x[:, None])[:, 0]
            arrays, push = (weights.view(np.uint32), x, _zeros(rows)), struct.pack("<2I", rows, k)
            constants = {0: 8, 1: 2, 2: per_word, 3: 3}
            yield Case("matvec", (-(-rows // 6),), (8, 2), arrays, push, constants, {2: truth})


def _rotary_append(lanes: int) -> Iterator[Case]:
    for rotary in (0, 1):
        heads, key_heads, size, capacity, tokens = 4, 2, 10, 5, 2
        rows, places = heads + key_heads, np.array([2, 3])
        angles = places[:, None] * np.array([0.7, 0.3, 0.1, 0.03, 0.01]) * rotary
        turns = np.zeros((capacity, size // 2, 2), np.float32)
        turns[places] = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
        cosine, sine = (turns[places, None, :, part].astype(float) for part in (0, 1))
        projected = _draw(7, tokens, rows + key_heads, size)
        left, right = np.split(projected.astype(float), 2, axis=-1)
        turned = np.concatenate([left * cosine - right * sine, right * cosine + left * sine], axis=-1)
        error = np.concatenate(
            [abs(left * cosine) + abs(right * sine), abs(right * cosine) + abs(left * sine)], axis=-1
        )
        error *= bounds.gamma(2) if rotary else 0.0
        caches = [np.zeros((2, capacity, key_heads, size)) for _ in range(2)]
        for cache, kept, limit in zip(
            caches, (turned[:, heads:rows], projected[:, rows:]), (error[:, heads:rows], 0.0)
        ):
            cache[:, places] = kept, np.broadcast_to(limit, kept.shape)
        truths = {3: (turned[:, :heads], error[:, :heads]), 4: tuple(caches[0]), 5: tuple(caches[1])}
        outputs = (_zeros(tokens, heads, size), *(_zeros(capacity, key_heads, size) for _ in range(2)))
        arrays = (turns, projected, np.array([places[-1] + 1], np.uint32), *outputs)
        push = struct.pack("<5I", heads, key_heads, size, capacity, tokens)
        yield Case("rotary_append", (3,), (64,), arrays, push, {0: 64, 1: rotary}, truths)


def _silu_gate(lanes: int) -> Iterator[Case]:
    for gated in (0, 1):
        rows, n = 2, 35
        x = 5 * _draw(gated, rows, 1 + gated, n)
        up, before = x.astype(float)[:, 0], x.astype(float)[:, gated]
        truth = before / (1 + np.exp(-before)) * (up if gated else 1)
        relative = (3 + 2 * np.abs(before)) * bounds.ULP + bounds.DIVISION + bounds.gamma(3)
        arrays = (x, _zeros(rows, n))
        constants = {0: 64, 1: gated}
        truths = {1: (truth, relative * np.abs(truth))}
        yield Case("silu_gate", (2,), (64,), arrays, struct.pack("<2I", n, rows), constants, truths)


@dataclass(frozen=True)
class _Ladder:
    """A rung of the matmul ladder. tile: columns and rows of C that a workgroup has. step: of K and N."""

    local_size: tuple[int, ...]
    tile: tuple[int, int]
    constants: dict[int, int]
    step: int = 1


LADDER = {
    "matmul_naive": _Ladder((8, 8), (8, 8), {0: 8}),
    "matmul_tiled": _Ladder((8, 8), (8, 8), {0: 8}),
    "matmul_register": _Ladder((4, 4), (16, 16), {0: 4, 1: 4, 2: 4, 3: 4}),
    "matmul_vector": _Ladder((4, 4), (32, 16), {0: 4, 1: 4, 2: 2, 3: 2}, 4),
    "matmul_subgroup": _Ladder((8,), (32, 4), {0: 8, 1: 4, 2: 4, 3: 4}),
    "matmul_wide": _Ladder((8,), (32, 8), {0: 8, 1: 8, 2: 2, 3: 4}, 2),
}


def _matmul(name: str) -> Callable[[int], Iterator[Case]]:
    rung = LADDER[name]

    def cases(lanes: int) -> Iterator[Case]:
        for shape in MATRICES:
            m, k, n = (shape[0], *(-(-size // rung.step) * rung.step for size in shape[1:]))
            a, b = _draw(m, m, k), _draw(k, k, n)
            truth = {2: (a.astype(float) @ b, bounds.dot_bound(a, b))}
            groups = (-(-n // rung.tile[0]), -(-m // rung.tile[1]))
            push = struct.pack("<3I", m, n, k)
            yield Case(name, groups, rung.local_size, (a, b, _zeros(m, n)), push, rung.constants, truth)

    return cases


def _cooperative(name: str) -> Callable[[int], Iterator[Case]]:
    def cases(lanes: int) -> Iterator[Case]:
        for m, k, n in MATRICES:
            if name.endswith("f16"):
                a, b, c = _draw(m, m, k).astype(np.float16), _draw(k, k, n).astype(np.float16), _zeros(m, n)
                bound = bounds.dot_bound(a, b)
            else:
                draw = np.random.default_rng(m)
                a, b = (draw.integers(-128, 128, shape).astype(np.int8) for shape in ((m, k), (k, n)))
                c, bound = _zeros(m, n, dtype=np.int32), 0.0
            constants = {0: lanes, 1: 8, 2: 8, 3: 8, 4: 2, 5: 2}
            groups, push = (-(-n // 16), -(-m // 16)), struct.pack("<3I", m, n, k)
            truth = {2: (a.astype(float) @ b.astype(float), bound)}
            yield Case(name, groups, (lanes,), (a, b, c), push, constants, truth)

    return cases


CASES: dict[str, Callable[[int], Iterator[Case]]] = {
    "saxpy": _saxpy,
    "reduce_tree": _reduce("reduce_tree"),
    "reduce_subgroup": _reduce("reduce_subgroup"),
    "scan_tree": _scan("scan_tree"),
    "scan_subgroup": _scan("scan_subgroup"),
    "scan_offsets": _scan_offsets,
    "softmax": _softmax,
    "rmsnorm": _rmsnorm,
    "rmsnorm_residual": _rmsnorm_residual,
    "dequant_matvec": _dequant_matvec,
    "attention_decode": _attention,
    "embed": _embed,
    "matmul_dense": _matmul_dense,
    "matmul_dequant": _matmul_dequant,
    "matvec": _matvec,
    "rotary_append": _rotary_append,
    "silu_gate": _silu_gate,
    **{name: _matmul(name) for name in LADDER},
    **{name: _cooperative(name) for name in ("matmul_cooperative_f16", "matmul_cooperative_s8")},
}
