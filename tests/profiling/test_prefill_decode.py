import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from helpers.profiling.decode import Bytes, DecodeError, Sizes, cache_bytes, crossing_batch, decode, prefill
from helpers.profiling.roofline import Roofline

few = settings(max_examples=30, deadline=None)
sizes = st.builds(
    lambda layers, width, kv, group, head, hidden, vocabulary, gated: Sizes(
        layers, 2 * width, kv * group, kv, head, hidden, vocabulary, gated
    ),
    *(st.integers(1, limit) for limit in (3, 8, 3, 3, 8, 20, 30)),
    st.booleans(),
)
# Published sizes: Llama 3 8B and 70B model cards.
LLAMA_8B = Sizes(32, 4096, 32, 8, 128, 14336, 128256)
LLAMA_70B = Sizes(80, 8192, 64, 8, 128, 28672, 128256)
H100 = Roofline(989e12, 3.35e12)


class Ledger:
    """Runs the model on tensors without memory, and adds up the bytes that must move."""

    def __init__(self, sizes, elements):
        self.sizes, self.elements, self.bytes = sizes, elements, 0.0

    def move(self, tensor, kind):
        self.bytes += tensor.numel() * getattr(self.elements, kind)

    def product(self, x, outputs):
        weight = torch.empty(outputs, x.shape[-1], device="meta")
        y = F.linear(x, weight)
        self.move(weight, "weight")
        self.move(x, "activation")
        self.move(y, "activation")
        return y

    def heads(self, y, count):
        return y.unflatten(-1, (count, self.sizes.head)).transpose(1, 2)

    def attend(self, q, k, v, fresh):
        """`fresh`: the last tokens of k and v, which come from this pass; the others lie in the cache."""
        for tensor in (k, v):
            self.move(tensor[:, :, : tensor.shape[2] - fresh], "cache")
            self.move(tensor[:, :, tensor.shape[2] - fresh :], "activation")
            self.move(tensor[:, :, tensor.shape[2] - fresh :], "cache")
        group = self.sizes.heads // self.sizes.kv_heads
        whole = [tensor.repeat_interleave(group, 1) for tensor in (k, v)]
        out = (q @ whole[0].transpose(-1, -2)) @ whole[1]
        self.move(q, "activation")
        self.move(out, "activation")
        return out.transpose(1, 2).flatten(2)

    def run(self, batch, fresh, context):
        s = self.sizes
        x = torch.empty(batch, fresh, s.width, device="meta")
        old = torch.empty(batch, s.kv_heads, context - fresh, s.head, device="meta")
        with FlopCounterMode(display=False) as counter:
            for _ in range(s.layers):
                q = self.heads(self.product(x, s.heads * s.head), s.heads)
                k, v = (
                    torch.cat([old, self.heads(self.product(x, s.kv_heads * s.head), s.kv_heads)], 2)
                    for _ in range(2)
                )
                x = self.product(self.attend(q, k, v, fresh), s.width)
                inner, *_ = [self.product(x, s.hidden) for _ in range(1 + s.gated)]
                x = self.product(inner, s.width)
            self.product(x[:, -1], s.vocabulary)
        return counter.get_total_flops(), self.bytes


@given(
    sizes=sizes,
    batch=st.integers(1, 5),
    context=st.integers(1, 9),
    elements=st.sampled_from((Bytes(), Bytes(1, 4, 2))),
)
@few
def test_decode_is_what_a_model_without_memory_does(sizes, batch, context, elements):
    flop, moved = Ledger(sizes, elements).run(batch, 1, context)
    whole = decode(sizes, batch, context, elements).whole
    assert (whole.flop, whole.bytes) == (flop, moved)


@given(
    sizes=sizes,
    batch=st.integers(1, 5),
    tokens=st.integers(1, 9),
    elements=st.sampled_from((Bytes(), Bytes(1, 4, 2))),
)
@few
def test_prefill_is_what_a_model_without_memory_does(sizes, batch, tokens, elements):
    flop, moved = Ledger(sizes, elements).run(batch, tokens, tokens)
    whole = prefill(sizes, batch, tokens, elements, causal=False).whole
    assert (whole.flop, whole.bytes) == (flop, moved)


@given(sizes=sizes, tokens=st.integers(1, 9))
@few
def test_decoding_token_by_token_does_the_causal_attention_of_prefill(sizes, tokens):
    steps = sum(decode(sizes, 1, context).attention.flop for context in range(1, tokens + 1))
    assert steps == prefill(sizes, 1, tokens).attention.flop


@given(sizes=sizes, batch=st.integers(1, 5), context=st.integers(1, 9))
@few
def test_the_cache_holds_the_keys_and_values_of_all_layers(sizes, batch, context):
    one = torch.empty(batch, sizes.kv_heads, context, sizes.head, dtype=torch.bfloat16, device="meta")
    assert cache_bytes(sizes, batch, context) == 2 * sizes.layers * one.nbytes


def test_weights_are_those_of_published_models():
    """Llama 3 8B: 8.03e9 parameters, of which the input embedding (0.53e9) and the norms do not multiply."""
    assert LLAMA_8B.weights + 128256 * 4096 + (2 * 32 + 1) * 4096 == 8_030_261_248
    assert LLAMA_70B.weights + 128256 * 8192 + (2 * 80 + 1) * 8192 == 70_553_706_496


@given(
    sizes=sizes,
    context=st.integers(0, 9),
    peak=st.floats(1e10, 1e12),
    ridge=st.floats(0.1, 20.0),
    elements=st.sampled_from((Bytes(), Bytes(weight=1), Bytes(4, 4, 4))),
)
@settings(max_examples=100, deadline=None)
def test_the_crossing_batch_is_where_a_search_finds_it(sizes, context, peak, ridge, elements):
    roof = Roofline(peak, peak / ridge)
    crossing = crossing_batch(sizes, roof, context, elements)

    def stage(batch):
        found = decode(sizes, batch, max(context, 1), elements)
        return found.whole if context else found.linear

    assume(crossing == math.inf or crossing < 1e6)
    if crossing == math.inf:
        assert roof.limit(stage(10**6).intensity) == "memory"
        return
    limits = {
        batch: roof.limit(stage(batch).intensity) for batch in (math.floor(crossing), math.ceil(crossing)) if batch
    }
    if crossing > 1 and abs(crossing - round(crossing)) > 1e-6:
        assert limits == {math.floor(crossing): "memory", math.ceil(crossing): "compute"}


def test_in_bf16_with_a_short_context_the_batch_is_about_the_ridge():
    assert crossing_batch(LLAMA_8B, H100, bytes_of=Bytes(activation=0)) == pytest.approx(H100.ridge)
    assert H100.ridge < crossing_batch(LLAMA_8B, H100) < 1.5 * H100.ridge
    assert crossing_batch(LLAMA_8B, H100, bytes_of=Bytes(0.5, 2, 0)) == pytest.approx(H100.ridge / 4)


def test_a_long_context_never_crosses():
    assert crossing_batch(LLAMA_8B, H100, context=8192) == math.inf
    stage = decode(LLAMA_8B, 256, 8192)
    assert stage.limiters(H100)[1] == "memory"
    assert stage.attention.intensity == pytest.approx(32 / 8, rel=0.01)


def test_prefill_and_decode_lie_on_both_sides_of_the_ridge():
    first, later = prefill(LLAMA_8B, 1, 4096), decode(LLAMA_8B, 1, 4096)
    assert H100.limit(first.whole.intensity) == "compute" and H100.limit(later.whole.intensity) == "memory"
    assert later.whole.intensity == pytest.approx(1, rel=0.2)
    assert later.seconds(H100) == pytest.approx(later.whole.bytes / 3.35e12)
    assert first.linear.flop == pytest.approx(2 * 4096 * (LLAMA_8B.weights - 4096 * 128256), rel=1e-3)


@pytest.mark.parametrize(
    "call",
    [
        lambda: Sizes(0, 1, 1, 1, 1, 1, 1),
        lambda: Sizes(1, 1.5, 1, 1, 1, 1, 1),
        lambda: Sizes(1, 8, 3, 2, 1, 1, 1),
        lambda: decode(LLAMA_8B, 0, 1),
        lambda: prefill(LLAMA_8B, 1, 0),
        lambda: crossing_batch(LLAMA_8B, H100, context=-1),
    ],
)
def test_sizes_that_make_no_model_are_refused(call):
    with pytest.raises(DecodeError) as caught:
        call()
    assert caught.value.mend
