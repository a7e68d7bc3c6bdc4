"""The course's language model, served by the course's shaders: one recorded command buffer for every token.

A prompt goes in chunks: a matrix then meets many tokens at once, and is read once for all of them.

A serving file is not a checkpoint: `serving_tensors` puts matrices that meet the same input under one another,
so that one dispatch serves them, and rounds them to what the device reads, once, ahead of time.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from helpers.edge import shaders
from helpers.edge.kernels import (
    AttentionDecode,
    Call,
    DenseMatmul,
    DequantMatmul,
    DequantMatvec,
    Family,
    Quantised,
    RmsNorm,
    RmsNormResidual,
    quantise,
)
from helpers.edge.kernels.family import MOST_GROUPS, ArgumentError, require_arrays, subgroup_size
from helpers.edge.vulkan import Buffer, Memory, VulkanError
from helpers.edge.weights import Weights
from helpers.errors import CourseError
from helpers.measure import Quantity, measured, predicted

if TYPE_CHECKING:
    from helpers.edge.vulkan import Device, Recording

GROUP = 32  # values that share a scale
CHUNK = 32  # tokens of a prompt in one submit
MATRIX_KINDS = ("float32", "float16", "int8", "int4")


class DecodeError(CourseError):
    """A model that cannot be served, or a token that cannot be taken."""


class Precision(StrEnum):
    """How the matrices are stored; activations, norms, embeddings and the cache are fp32 with each."""

    FP32 = "fp32"
    FP16 = "fp16"
    INT8 = "int8"
    INT4 = "int4"


@dataclass(frozen=True)
class DecoderConfig:
    """The shape of a decoder-only transformer with RMSNorm, grouped keys and a SiLU feed-forward network.

    width: of the residual stream. blocks, heads, kv_heads, context, ffn_width, vocab: counts. gated: SwiGLU.
    rotary: positions turn queries and keys with `rotary_base`; without, they are a learned table. epsilon: of
    the norms; the default is what PyTorch takes for fp32 when it is told none.
    """

    width: int
    blocks: int
    heads: int
    kv_heads: int
    context: int
    ffn_width: int
    vocab: int
    gated: bool
    rotary: bool
    rotary_base: float = 500_000.0
    epsilon: float = 2.0**-23

    def __post_init__(self):
        counts = ("width", "blocks", "heads", "kv_heads", "context", "ffn_width", "vocab")
        for name in counts:
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise DecodeError(f"{name} is {getattr(self, name)!r}", where="DecoderConfig", mend="use 1 or more")
        if self.width % self.heads or self.heads % self.kv_heads or (self.rotary and self.head_width % 2):
            raise DecodeError(
                f"{self.heads} heads on {self.kv_heads} of a width of {self.width}",
                where="DecoderConfig",
                mend="use whole heads, and an even number of features a head with rotary positions",
            )

    @property
    def head_width(self) -> int:
        """Features of one head."""
        return self.width // self.heads

    @property
    def kv_width(self) -> int:
        """Features of all keys, and of all values."""
        return self.kv_heads * self.head_width

    @classmethod
    def like(cls, model: object) -> "DecoderConfig":
        """From a config with the attributes of `helpers.training.ModelConfig`, whose 0 key heads mean all heads."""
        names = ("width", "blocks", "heads", "context", "ffn_width", "vocab", "gated", "rotary")
        return cls(kv_heads=model.kv_heads or model.heads, **{name: getattr(model, name) for name in names})

    @classmethod
    def of(cls, table: Mapping) -> "DecoderConfig":
        """From the table of a weights file; `DecodeError` names a missing or an unknown entry."""
        known = {field.name for field in fields(cls)}
        if strange := sorted(set(table) - known):
            raise DecodeError(f"the config has an unknown {strange[0]!r}", mend=f"it has {', '.join(sorted(known))}")
        try:
            return cls(**table)
        except TypeError as error:
            raise DecodeError(
                f"the config is not whole: {error}", mend="write all entries of DecoderConfig"
            ) from None


def parameter_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter that `serving_tensors` takes, by its name."""
    return {name: shape for _, parts, _ in _tensors(config) for name, shape in parts.items()}


def serving_tensors(
    config: DecoderConfig, parameters: Mapping[str, np.ndarray], precision: str = Precision.FP32
) -> dict[str, "np.ndarray | Quantised"]:
    """What `write_weights` takes, from fp32 parameters by the names of a PyTorch `state_dict`.

    Raises `DecodeError` for a parameter that is missing, of another shape, or left over.
    """
    precision = Precision(precision)
    left = {name: np.asarray(value, dtype=np.float32) for name, value in parameters.items()}
    found = {
        name: _join(left, parts, precision if matrix else Precision.FP32) for name, parts, matrix in _tensors(config)
    }
    if left:
        raise DecodeError(f"{min(left)} is left over", mend="pass the parameters of one model, and its own config")
    return found


class Decoder:
    """A model on a device, with the keys and values of all tokens so far.

    weights: of `open_weights`. chunk: tokens of a prompt that one submit takes, 1 where the device's subgroups
    cannot shuffle. mapped_bytes: weights that the device reads from the file's own pages.
    copied_bytes: weights that had to be copied, with the reason in `why_copied`. Not to be used by two threads.
    """

    def __init__(self, device: "Device", weights: Weights, chunk: int = CHUNK):
        if chunk < 1:
            raise DecodeError(f"chunks of {chunk} tokens", where="Decoder", mend="use 1 or more")
        self.device, self.config = device, DecoderConfig.of(weights.config)
        self.chunk = 1 if device.info.why_not("subgroup_shuffle") else min(chunk, self.config.context)
        _require_weights(self.config, weights)
        self.mapped_bytes = self.copied_bytes = 0
        self.why_copied = ""
        self.weight_bytes = _read_bytes(self.config, weights)
        self._kernels, self._buffers = _Kernels(device, self.config), {}
        self._weights = {name: self._take(weights[name]) for name in weights}
        self._tokens, self._length = (device.buffer(size, np.uint32) for size in (self.chunk, 1))
        self._logits = device.buffer(self.config.vocab)
        self._host = [buffer.array() for buffer in (self._tokens, self._length, self._logits)]
        self._caches = [self._cache() for _ in range(self.config.blocks)]
        self._turns = device.upload(rotary_table(self.config))
        self._whole, self._silent = self._record(head=True), {1: self._record()}

    @property
    def dispatches(self) -> int:
        """Dispatches of one token, with the head."""
        return len(self._whole.steps)

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return int(self._host[1][0])

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        """Take all `tokens` after those that are there; the logits (vocab,) after the last one.

        They go in chunks, and the last one alone, for only that one pays for the head. The logits are those of
        `step` for each token within the rounding of fp32: a chunk adds up in another order.
        """
        if not len(tokens):
            raise DecodeError("there are no tokens", where="prefill", mend="pass one at least")
        self._require_room(tokens)
        for start in range(0, len(tokens) - 1, self.chunk):
            self._take_in(tokens[start : min(start + self.chunk, len(tokens) - 1)])
        return self.step(int(tokens[-1]))

    def step(self, token: int) -> np.ndarray:
        """Take one token; the logits (vocab,) fp32 of what follows it."""
        self._require_room([token])
        self._submit(self._whole, [token])
        return self._host[2].copy()

    def generate(self, tokens: Sequence[int], count: int) -> list[int]:
        """The `count` likeliest tokens after `tokens`, one by one: of equal ones the first."""
        if count < 1:
            return []
        found = [int(self.prefill(tokens).argmax())]
        while len(found) < count:
            found.append(int(self.step(found[-1]).argmax()))
        return found

    def rewind(self, length: int = 0) -> None:
        """Forget all tokens behind the first `length`. The caches keep their bytes, which nothing reads."""
        if not 0 <= length <= self.length:
            raise DecodeError(f"no way back to {length} tokens", mend=f"use 0 to {self.length}")
        self._host[1][0] = length

    def bytes_per_token(self, length: int | None = None) -> Quantity:
        """What a step must read and write at least: all matrices, and the cache with `length` tokens, `B`."""
        length = self.length if length is None else length
        cache = 2 * 4 * self.config.blocks * self.config.kv_width * (length + 1)
        return predicted(self.weight_bytes + cache, "B", f"weights + cache of {length} tokens")

    def close(self) -> None:
        """Give back the recordings."""
        for recording in (self._whole, *self._silent.values()):
            recording.free()

    def _take_in(self, tokens: Sequence[int]) -> None:
        """A chunk without the head; each number of tokens is recorded once."""
        count = len(tokens)
        if count not in self._silent:
            self._silent[count] = self._record(count)
        self._submit(self._silent[count], tokens)

    def _submit(self, recording: "Recording", tokens: Sequence[int]) -> None:
        self._host[0][: len(tokens)] = tokens
        self._host[1][0] += len(tokens)
        recording.submit()

    def _require_room(self, tokens: Sequence[int]) -> None:
        config = self.config
        for token in tokens:
            if not 0 <= int(token) < config.vocab:
                raise DecodeError(f"there is no token {token}", mend=f"use 0 to {config.vocab - 1}")
        if self.length + len(tokens) > config.context:
            raise DecodeError(
                f"{self.length} tokens and {len(tokens)} more are over the context of {config.context}",
                mend="rewind() and pass the last ones only",
            )

    def _take(self, tensor: "np.ndarray | Quantised") -> tuple[Buffer, ...]:
        """Dense matrices go as the 32-bit words that the shader reads, by a view."""
        if isinstance(tensor, Quantised):
            return self._import(tensor.words), self._import(tensor.scales)
        return (self._import(tensor.view(np.uint32) if tensor.ndim == 2 else tensor),)

    def _import(self, array: np.ndarray) -> Buffer:
        """The file's own pages where the device can read them; a GPU with memory of its own gets a copy there."""
        info = self.device.info
        self.why_copied = (
            "the device has memory of its own" if info.kind == "discrete" else info.why_not("host_import")
        )
        if not self.why_copied:
            try:
                buffer = self.device.import_array(array)
                self.mapped_bytes += array.nbytes
                return buffer
            except VulkanError as error:
                self.why_copied = error.what
        self.copied_bytes += array.nbytes
        return self.device.upload(array, Memory.DEVICE_LOCAL)

    def _cache(self) -> tuple[Buffer, Buffer]:
        c = self.config
        shape = (c.context, c.kv_heads, c.head_width)
        return tuple(self.device.buffer(shape, np.float32, Memory.DEVICE_LOCAL) for _ in range(2))

    def _record(self, tokens: int = 1, head: bool = False) -> "Recording":
        recording = self.device.record(timestamps=False)
        with recording:
            for call in self._calls(tokens, head):
                recording.dispatch(call.kernel, call.groups, call.buffers, call.push)
        return recording

    def _calls(self, tokens: int, head: bool) -> Iterator[Call]:
        """The dispatches of as many tokens. Each residual is added by the norm that follows it."""
        c, k, w = self.config, self._kernels, self._weights
        residual, normed, change = (self._space(name, tokens, c.width) for name in ("residual", "normed", "change"))
        places = w["token"] if c.rotary else w["position"]
        yield k.embed.call(w["token"][0], places[0], self._tokens, self._length, residual)
        yield from k.norm.calls(residual, w["blocks.0.attention_norm"][0], normed)
        for block, (keys, values) in enumerate(self._caches):
            yield from self._attention(f"blocks.{block}.", normed, change, keys, values)
            yield from k.norm_residual.calls(change, residual, w[f"blocks.{block}.ffn_norm"][0], normed)
            yield from self._feed_forward(f"blocks.{block}.", normed, change)
            if block + 1 < c.blocks:
                after = w[f"blocks.{block + 1}.attention_norm"][0]
            elif head:
                after = w["norm"][0]
            else:
                return
            yield from k.norm_residual.calls(change, residual, after, normed)
        yield from k.product(w["head"], normed, _view(self._logits, 1, c.vocab))

    def _attention(self, prefix: str, x: Buffer, y: Buffer, keys: Buffer, values: Buffer) -> Iterator[Call]:
        c, k, w = self.config, self._kernels, self._weights
        tokens = x.shape[0]
        projected = self._space("projected", tokens, c.width + 2 * c.kv_width)
        q, mixed = (self._space(name, tokens, c.heads, c.head_width) for name in ("q", "mixed"))
        yield from k.product(w[f"{prefix}query_key_value"], x, projected)
        yield k.append.call(self._turns, projected, self._length, q, keys, values)
        yield from k.attention.calls(q, keys, values, self._length, mixed)
        yield from k.product(w[f"{prefix}out"], _view(mixed, tokens, c.width), y)

    def _feed_forward(self, prefix: str, x: Buffer, y: Buffer) -> Iterator[Call]:
        c, k, w = self.config, self._kernels, self._weights
        up, hidden = (
            self._space(name, x.shape[0], columns)
            for name, columns in (("up", (1 + c.gated) * c.ffn_width), ("hidden", c.ffn_width))
        )
        yield from k.product(w[f"{prefix}up"], x, up)
        yield k.silu.call(up, hidden)
        yield from k.product(w[f"{prefix}down"], hidden, y)

    def _space(self, name: str, tokens: int, *shape: int) -> Buffer:
        """The place of an activation, the same for every block: the first tokens of room for a chunk."""
        if name not in self._buffers:
            self._buffers[name] = self.device.buffer((self.chunk, *shape), np.float32, Memory.DEVICE_LOCAL)
        return _view(self._buffers[name], tokens, *shape)


def rate(seconds_per_token: float) -> Quantity:
    """Tokens in a second, `token/s`."""
    return measured(1 / seconds_per_token, "token/s")


def share_of_roof(nbytes: Quantity, seconds: float, bandwidth: Quantity) -> Quantity:
    """How much of a bandwidth roof (`B/s`) a step that moves `nbytes` in `seconds` reaches, in percent.

    More than 100 means that the weights came from a cache which the roof does not describe.
    """
    return measured(100 * nbytes.value / seconds / bandwidth.value, "%")


def rotary_table(config: DecoderConfig) -> np.ndarray:
    """Cosine and sine of each position and pair: fp32 (context, head_width / 2, 2), rounded once from float64."""
    half = max(1, config.head_width // 2)
    speeds = config.rotary_base ** (-np.arange(half) / half)
    angles = np.arange(config.context)[:, None] * speeds
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)


class _Kernels:
    """The kernels of a model on a device."""

    def __init__(self, device: "Device", config: DecoderConfig):
        self.device = device
        self.embed = _Embed(device, config)
        self.norm, self.norm_residual = (kind(device, config.epsilon) for kind in (RmsNorm, RmsNormResidual))
        self.append = _Append(device, config)
        self.attention = AttentionDecode(device, config.heads, config.kv_heads, config.head_width)
        self.silu = _Silu(device, config.gated)
        self._products: dict[tuple, Family] = {}

    def product(self, matrix: tuple[Buffer, ...], x: Buffer, y: Buffer) -> tuple[Call, ...]:
        """y (tokens, rows) = x (tokens, k) · Wᵀ for W (rows, k), dense or as words and scales."""
        dense, one = len(matrix) == 1, x.shape[0] == 1
        kind = x.shape[1] // matrix[0].shape[1] if dense else _bits(*matrix)
        if one:
            x, y = (_view(buffer, buffer.shape[1]) for buffer in (x, y))
        return self._product(dense, one, kind).calls(*matrix, x, y)

    def _product(self, dense: bool, one: bool, kind: int) -> Family:
        """kind: values of a word, or bits. Made when the first recording needs it: compiling takes a driver long."""
        key = (dense, one, kind)
        if key not in self._products:
            if dense:
                made = (Matvec if one else DenseMatmul)(self.device, kind)
            else:
                made = (DequantMatvec if one else DequantMatmul)(self.device, kind, GROUP)
            self._products[key] = made
        return self._products[key]


class Matvec(Family):
    """y (rows,) = W (rows, k) · x (k,) for W in fp32, or in fp16 with k even, without a 16-bit feature.

    per_word: values in 32 bits, 1 or 2. lanes: invocations along k, as many as a subgroup has by default, so that
    they read neighbours together. parts: of these in a workgroup. rows: of one of these, which share what it
    reads of x.
    """

    def __init__(self, device: "Device", per_word: int = 1, lanes: int = 0, parts: int = 4, rows: int = 8):
        super().__init__(device)
        self.per_word, self.tile = per_word, parts * rows
        lanes = lanes or subgroup_size(device)
        self.kernel = device.kernel(shaders.spirv("matvec"), {0: lanes, 1: parts, 2: per_word, 3: rows})

    def calls(self, words: Buffer, x: Buffer, y: Buffer) -> tuple[Call, ...]:
        """words: uint32 (rows, k / per_word), the bits of W. x: fp32 (k,). y: fp32 (rows,)."""
        require_arrays("uint32", words=words)
        require_arrays("float32", x=x, y=y)
        rows, k = y.shape[0], x.shape[0]
        if len(words.shape) != 2 or (words.shape[0], words.shape[1] * self.per_word) != (rows, k):
            raise ArgumentError(f"words of {words.shape}", mend=f"use ({rows}, {k // self.per_word})")
        groups = -(-rows // self.tile)
        if groups > MOST_GROUPS:
            raise ArgumentError(f"{rows} rows", mend=f"use {MOST_GROUPS * self.tile} at most")
        return (Call(self.kernel, (groups,), (words, x, y), struct.pack("<2I", rows, k)),)


class _Embed:
    def __init__(self, device: "Device", config: DecoderConfig):
        self._kernel, self._width = device.kernel(shaders.spirv("embed"), {1: int(not config.rotary)}), config.width

    def call(self, *buffers: Buffer) -> Call:
        """table, places, tokens, length, y (tokens, width)."""
        tokens = buffers[-1].shape[0]
        push = struct.pack("<2I", self._width, tokens)
        return Call(self._kernel, (_groups(tokens * self._width),), buffers, push)


class _Append:
    def __init__(self, device: "Device", config: DecoderConfig):
        self._kernel, self._config = device.kernel(shaders.spirv("rotary_append"), {1: int(config.rotary)}), config

    def call(self, *buffers: Buffer) -> Call:
        """turns, projected (tokens, width + 2 · key width), length, q, keys, values."""
        c, (tokens, once) = self._config, buffers[1].shape
        push = struct.pack("<5I", c.heads, c.kv_heads, c.head_width, c.context, tokens)
        return Call(self._kernel, (_groups(tokens * once),), buffers, push)


class _Silu:
    def __init__(self, device: "Device", gated: bool):
        self._kernel = device.kernel(shaders.spirv("silu_gate"), {1: int(gated)})

    def call(self, x: Buffer, y: Buffer) -> Call:
        rows, n = y.shape
        return Call(self._kernel, (_groups(rows * n),), (x, y), struct.pack("<2I", n, rows))


def _groups(invocations: int) -> int:
    return -(-invocations // 64)


def _bits(words: Buffer, scales: Buffer) -> int:
    return 32 * words.shape[0] // (scales.shape[0] * GROUP)


def _view(buffer: Buffer, *shape: int) -> Buffer:
    """The first elements of the same memory in another shape."""
    return Buffer(buffer.device, shape, buffer.dtype, buffer.allocation)


def _tensors(config: DecoderConfig) -> Iterator[tuple[str, dict[str, tuple[int, ...]], bool]]:
    """(name, the parameters under one another in it with their shapes, whether it is a matrix to multiply)."""
    c = config
    yield "token", {"token.weight": (c.vocab, c.width)}, False
    if not c.rotary:
        yield "position", {"position.weight": (c.context, c.width)}, False
    for block in range(c.blocks):
        here = f"blocks.{block}."
        heads = {"query": c.width, "key": c.kv_width, "value": c.kv_width}
        fused = {f"{here}attention.{part}.weight": (rows, c.width) for part, rows in heads.items()}
        ups = ("up", "gate") if c.gated else ("up",)
        yield f"{here}attention_norm", {f"{here}attention_norm.weight": (c.width,)}, False
        yield f"{here}query_key_value", fused, True
        yield f"{here}out", {f"{here}attention.out.weight": (c.width, c.width)}, True
        yield f"{here}ffn_norm", {f"{here}ffn_norm.weight": (c.width,)}, False
        yield f"{here}up", {f"{here}ffn.{part}.weight": (c.ffn_width, c.width) for part in ups}, True
        yield f"{here}down", {f"{here}ffn.down.weight": (c.width, c.ffn_width)}, True
    yield "norm", {"norm.weight": (c.width,)}, False
    yield "head", {"head.weight": (c.vocab, c.width)}, True


def _join(left: dict[str, np.ndarray], parts: dict[str, tuple[int, ...]], precision: Precision):
    for name, shape in parts.items():
        if name not in left or left[name].shape != shape:
            found = f"has the shape {left[name].shape}, not {shape}" if name in left else "is missing"
            raise DecodeError(f"{name} {found}", mend="pass the parameters of a model of this config")
    matrix = np.concatenate([left.pop(name) for name in parts])
    if precision in (Precision.INT8, Precision.INT4):
        return quantise(matrix, int(precision[3:]), GROUP)
    if precision == Precision.FP32:
        return matrix
    if matrix.shape[1] % 2:
        raise DecodeError(f"{matrix.shape[1]} columns in fp16", mend="use an even number, or fp32")
    with np.errstate(over="ignore"):
        half = matrix.astype(np.float16)
    if not np.isfinite(half).all():
        raise DecodeError(f"a weight of {np.abs(matrix).max():g} in fp16, which ends at 65504", mend="use fp32")
    return half


def _require_weights(config: DecoderConfig, weights: Weights) -> None:
    """Raise `DecodeError` unless the file holds exactly the tensors of the config."""
    expected = {}
    for name, parts, matrix in _tensors(config):
        shapes = list(parts.values())
        expected[name] = (sum(shape[0] for shape in shapes), *shapes[0][1:]), matrix
    for name in sorted(expected.keys() | weights.keys()):
        if name not in expected or name not in weights:
            what = "is unknown" if name not in expected else "is missing"
            raise DecodeError(f"{name} {what}", where=weights.path.name, mend="write what serving_tensors returned")
        (shape, matrix), (kind, found) = expected[name], _describe(weights[name])
        if found != shape or kind not in (MATRIX_KINDS if matrix else ("float32",)):
            raise DecodeError(
                f"{name} is {kind} {found}, where the config has {shape}",
                where=weights.path.name,
                mend="write what serving_tensors returned",
            )


def _describe(tensor: "np.ndarray | Quantised") -> tuple[str, tuple[int, ...]]:
    """(how it is stored, its shape)."""
    if not isinstance(tensor, Quantised):
        odd = " with odd rows" if tensor.dtype == np.float16 and tensor.shape[-1:] and tensor.shape[-1] % 2 else ""
        return tensor.dtype.name + odd, tensor.shape
    groups = "" if tensor.group == GROUP else f" in groups of {tensor.group}"
    return f"int{tensor.bits}{groups}", (tensor.rows, tensor.k)


def _read_bytes(config: DecoderConfig, weights: Weights) -> int:
    """What a step reads of the weights: one row of each embedding, and all else."""
    tables = {"token", "position"}
    rows = (1 if config.rotary else 2) * 4 * config.width
    return rows + sum(weights[name].nbytes for name in weights if name not in tables)
