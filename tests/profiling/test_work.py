"""Models of work against torch's counter, against the tensors that really go in and out, and against arithmetic."""

import math
from contextlib import suppress
from itertools import product
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from helpers.profiling import work
from helpers.profiling.trace import Event
from helpers.profiling.work import MODELS, Work, work_of

aten = torch.ops.aten
size = st.integers(1, 12)
few = settings(max_examples=40, deadline=None)


class Calls(TorchDispatchMode):
    """Every operator call: the event that a trace would hold of it, and the bytes of its tensors.

    `IGNORED` are the arguments whose values the operator does not need, or that hold one number.
    """

    IGNORED: ClassVar = {"state_steps": "aten::_fused_adamw_", "bias": "aten::native_layer_norm_backward"}

    def __init__(self):
        super().__init__()
        self.seen = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        named = [(info.name, arg) for info, arg in zip(func._schema.arguments, args)]
        read = [t for name, arg in named if self.IGNORED.get(name) != func._schema.name for t in tensors(arg)]
        # The fused optimizer returns nothing: it writes its parameters and moments, its inputs 0, 2 and 3.
        in_place = (0, 2, 3) if func._schema.name == "aten::_fused_adamw_" else ()
        written = [*tensors(out), *(t for place in in_place for t in tensors(args[place]))]
        shapes = tuple(shape_of(arg) for arg in args)
        sizes = tuple(arg.element_size() if isinstance(arg, torch.Tensor) else 0 for arg in args)
        event = Event(func._schema.name, "cpu_op", 0, 1, (0, 0), shapes, sizes)
        self.seen[func._schema.name] = event, sum(t.nbytes for t in (*read, *written))
        return out


def tensors(value):
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def shape_of(arg):
    if isinstance(arg, torch.Tensor):
        return tuple(arg.shape)
    lists = isinstance(arg, list) and arg and all(isinstance(item, torch.Tensor) for item in arg)
    return tuple(tuple(item.shape) for item in arg) if lists else ()


def call(function):
    """What torch's counter counts for a call, and the calls themselves."""
    with FlopCounterMode(display=False) as counter, Calls() as calls:
        function()
    return counter.get_total_flops(), calls.seen


def tensor(*shape, **options):
    return torch.empty(*shape, device="meta", **options)


@given(m=size, k=size, n=size, batch=size)
@few
def test_products_agree_with_torchs_counter_in_flop_and_bytes(m, k, n, batch):
    a, b, bias = tensor(m, k), tensor(k, n), tensor(n)
    many = tensor(batch, m, k), tensor(batch, k, n)
    for name, function in {
        "aten::mm": lambda: a @ b,
        "aten::addmm": lambda: torch.addmm(bias, a, b),
        "aten::bmm": lambda: torch.bmm(*many),
        "aten::baddbmm": lambda: torch.baddbmm(tensor(batch, m, n), *many),
    }.items():
        flop, seen = call(function)
        event, moved = seen[name]
        assert work_of(event) == Work(flop, moved), name


@given(m=size, k=size, n=size)
@few
def test_a_product_in_fp8_reads_one_byte_an_element(m, k, n):
    a, b = tensor(16 * m, 16 * k, dtype=torch.float8_e4m3fn), tensor(16 * n, 16 * k, dtype=torch.float8_e4m3fn).t()
    one = tensor(1)
    with FlopCounterMode(display=False) as counter:
        out = torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16)
    model = work.matmul(16 * m, 16 * k, 16 * n, 1, out_bytes=2)
    assert model == Work(counter.get_total_flops(), a.nbytes + b.nbytes + out.nbytes)


@given(
    batch=size, channels=size, filters=size, kernel=st.integers(1, 4), extent=st.integers(4, 9), pad=st.integers(0, 2)
)
@few
def test_convolutions_agree_with_torchs_counter(batch, channels, filters, kernel, extent, pad):
    x, weight = tensor(batch, channels, extent, extent), tensor(filters, channels, kernel, kernel)
    flop, seen = call(lambda: F.conv2d(x, weight, padding=pad))
    out = extent + 2 * pad - kernel + 1
    model = work.convolution(batch, channels, filters, (kernel, kernel), (out, out))
    assert model == flop and "aten::convolution" in seen
    grad = tensor(batch, filters, out, out)
    rest = (None, (1, 1), (pad, pad), (1, 1), False, (0, 0), 1, (True, True, False))
    backward, _ = call(lambda: aten.convolution_backward(grad, x, weight, *rest))
    assert 2 * model == backward


def attentions(q, k, v, causal):
    """The forward operators that torch counts, by name, each with the arguments that torch calls it with."""
    queries, keys = q.shape[2], k.shape[2]
    swapped = [t.transpose(1, 2) for t in (q, k, v)]
    return {
        "_scaled_dot_product_flash_attention": (q, k, v, 0.0, causal),
        "_scaled_dot_product_efficient_attention": (q, k, v, None, True, 0.0, causal),
        "_scaled_dot_product_cudnn_attention": (q, k, v, None, True, 0.0, causal),
        "_flash_attention_forward": (*swapped, None, None, queries, keys, 0.0, causal, False),
        "_efficient_attention_forward": (*swapped, None, None, None, queries, keys, 0.0, int(causal), True),
    }


def backwards(q, k, v, causal):
    """Their gradients likewise."""
    lse, seed, queries, keys = tensor(*q.shape[:3]), tensor(2, dtype=torch.int64), q.shape[2], k.shape[2]
    rest = (lse, None, None, queries, keys, 0.0, causal, seed, seed)
    swapped = [t.transpose(1, 2) for t in (q, q, k, v)]
    drawn = (seed, seed, 0.0, (True, True, True, False), causal)
    efficient = (None, None, queries, keys, lse, 0.0, seed, seed, int(causal), False)
    return {
        "_scaled_dot_product_flash_attention_backward": (q, q, k, v, q, *rest),
        "_scaled_dot_product_efficient_attention_backward": (q, q, k, v, None, q, lse, *drawn),
        "_scaled_dot_product_cudnn_attention_backward": (
            q,
            q,
            k,
            v,
            q,
            lse,
            seed,
            seed,
            None,
            None,
            None,
            *rest[3:7],
        ),
        "_flash_attention_backward": (*swapped, swapped[0], *rest),
        "_efficient_attention_backward": (*swapped, None, swapped[0], *efficient),
    }


def as_event(name, arguments):
    shapes = tuple(shape_of(arg) for arg in arguments)
    sizes = tuple(arg.element_size() if isinstance(arg, torch.Tensor) else 0 for arg in arguments)
    return Event(f"aten::{name}", "cpu_op", 0, 1, (0, 0), shapes, sizes)


def counted(name, arguments, out):
    """What torch's own formula counts for one call; no CPU runs these kernels.

    torch up to 2.13 reads the (batch, sequence, heads, width) of the inner kernels as (batch, heads, sequence,
    width), which its issue 178064 and pull request 196132 mend: both readings are tried.
    """
    formula, found = flop_registry[getattr(aten, name)], set()
    readings = [arguments]
    if not name.startswith("_scaled"):
        readings.append([a.transpose(1, 2) if isinstance(a, torch.Tensor) and a.dim() == 4 else a for a in arguments])
    for reading in readings:
        with suppress(AssertionError):
            found.add(formula(*reading, out_val=out))
    return found


@given(
    batch=size, heads=st.integers(1, 4), queries=size, keys=size, width=st.sampled_from((8, 16)), causal=st.booleans()
)
@few
def test_attention_agrees_with_torchs_counter(batch, heads, queries, keys, width, causal):
    q = tensor(batch, heads, queries, width)
    k = v = tensor(batch, heads, keys, width)
    forward = work.attention(batch, heads, queries, keys, width, 4, statistics=True)
    for name, arguments in attentions(q, k, v, causal).items():
        assert work_of(as_event(name, arguments)) == forward and forward.flop in counted(name, arguments, (q,)), name
    backward = work.attention_backward(batch, heads, queries, keys, width, 4)
    for name, arguments in backwards(q, k, v, causal).items():
        assert work_of(as_event(name, arguments)) == backward, name
        assert backward.flop in counted(name, arguments, (q, k, v)), name
    assert 2 * backward.flop == 5 * forward.flop


@pytest.mark.skipif(torch.__version__ >= "2.14", reason="a later torch may count operators that did not exist")
def test_every_operator_that_torch_counts_is_checked_here():
    q = tensor(1, 1, 2, 8)
    checked = {"mm", "addmm", "bmm", "baddbmm", "_scaled_mm", *attentions(q, q, q, True), *backwards(q, q, q, True)}
    # One convolution stands for the names of all of them, which share one formula; flex attention is no operator.
    convolutions = {name for name in map(name_of, flop_registry) if "conv" in name}
    flex = {"flex_attention", "flex_attention_backward"}
    assert {name_of(operator) for operator in flop_registry} <= checked | convolutions | flex


def name_of(operator):
    return str(operator).removeprefix("aten.")


@given(queries=st.integers(1, 40), keys=st.integers(1, 40))
@settings(deadline=None)
def test_causal_pairs_are_those_of_the_mask(queries, keys):
    assert work.attended(queries, keys, True) == int(torch.ones(queries, keys).tril().sum())
    assert work.attended(queries, keys, False) == queries * keys
    both = [work.attention(2, 3, queries, keys, 8, 2, causal=causal) for causal in (True, False)]
    assert both[0].flop * queries * keys == both[1].flop * work.attended(queries, keys, True)
    assert both[0].bytes == both[1].bytes


@given(heads=st.integers(1, 3), group=st.integers(1, 4), queries=size, keys=size, width=size, values=size)
@few
def test_shared_heads_and_other_widths_are_counted(heads, group, queries, keys, width, values):
    q, k, v = tensor(2, heads * group, queries, width), tensor(2, heads, keys, width), tensor(2, heads, keys, values)
    out = tensor(2, heads * group, queries, values)
    model = work.attention(2, heads * group, queries, keys, width, 4, kv_heads=heads, value_width=values)
    from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

    assert model == Work(sdpa_flop_count(q.shape, k.shape, v.shape), sum(t.nbytes for t in (q, k, v, out)))
    back = work.attention_backward(2, heads * group, queries, keys, width, 4, kv_heads=heads, value_width=values)
    assert back.flop == sdpa_backward_flop_count(out.shape, q.shape, k.shape, v.shape)
    assert back.bytes == 2 * sum(t.nbytes for t in (q, k, v, out)) + 4 * 2 * heads * group * queries


def optimizer_call(shapes):
    parameters = [torch.rand(*shape, requires_grad=True) for shape in shapes]
    optimizer = torch.optim.AdamW(parameters, fused=True)
    for parameter in parameters:
        parameter.grad = torch.rand_like(parameter)
    optimizer.step()
    return optimizer.step


def programs(rows, width):
    """Functions that run the other operators of a training step, forward and backward."""
    x, y = (torch.rand(rows, width, requires_grad=True) for _ in range(2))
    weight, bias = (torch.rand(width, requires_grad=True) for _ in range(2))
    q = torch.rand(2, 3, rows, 8, requires_grad=True)
    grad = torch.ones(rows, width)
    return {
        "silu": lambda: F.silu(x).backward(grad),
        "gelu": lambda: F.gelu(x).backward(grad),
        "sigmoid": lambda: torch.sigmoid(x).backward(grad),
        "tanh": lambda: torch.tanh(x).backward(grad),
        "relu": lambda: F.relu(x).backward(grad),
        "add": lambda: x.detach() + y.detach(),
        "mul": lambda: x.detach() * bias.detach(),
        "scaled": lambda: x.detach() * 2.0,
        "add_": lambda: x.detach().add_(y.detach()),
        "addcmul": lambda: torch.addcmul(x.detach(), y.detach(), y.detach(), value=0.5),
        "_softmax": lambda: x.softmax(-1).backward(grad),
        "_log_softmax": lambda: x.log_softmax(-1).backward(grad),
        "native_layer_norm": lambda: F.layer_norm(x, (width,), weight, bias).backward(grad),
        "attention": lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True).backward(torch.ones_like(q)),
        "adamw": optimizer_call([(rows, width), (width,)]),
    }


@given(rows=size, width=size)
@settings(max_examples=15, deadline=None)
def test_bytes_are_those_of_the_tensors_that_go_in_and_out(rows, width):
    checked = set()
    for function in programs(rows, width).values():
        _, seen = call(function)
        for name, (event, moved) in seen.items():
            if (found := work_of(event)) is not None:
                assert found.bytes == moved, name
                checked.add(name.removeprefix("aten::"))
    assert checked >= {
        *(
            "silu",
            "silu_backward",
            "gelu",
            "gelu_backward",
            "sigmoid_backward",
            "tanh_backward",
            "threshold_backward",
        ),
        *("add", "add_", "mul", "addcmul", "_softmax", "_softmax_backward_data", "_log_softmax_backward_data"),
        *("native_layer_norm", "native_layer_norm_backward", "_fused_adamw_", "_log_softmax"),
        *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward"),
    }


@given(rows=size, width=size)
@few
def test_bytes_of_fused_rms_norm_are_those_of_its_tensors(rows, width):
    x, weight, root = torch.rand(rows, width), torch.rand(width), torch.rand(rows, 1)
    forward = as_event("_fused_rms_norm", (x, [width], weight, None))
    assert work_of(forward).bytes == 2 * x.nbytes + weight.nbytes + root.nbytes
    assert work.rms_norm(rows, width, 4).bytes == 2 * x.nbytes + weight.nbytes
    backward = as_event("_fused_rms_norm_backward", (x, x, [width], root, weight, [True, True]))
    assert work_of(backward).bytes == 3 * x.nbytes + 2 * weight.nbytes + root.nbytes


class Number:
    """A number that counts the arithmetic done with it."""

    count = 0

    def __init__(self, value):
        self.value = value.value if isinstance(value, Number) else float(value)

    def _do(self, value):
        Number.count += 1
        return Number(value)

    def __add__(self, other):
        return self._do(self.value + Number(other).value)

    def __sub__(self, other):
        return self._do(self.value - Number(other).value)

    def __mul__(self, other):
        return self._do(self.value * Number(other).value)

    def __truediv__(self, other):
        return self._do(self.value / Number(other).value)

    def __gt__(self, other):
        Number.count += 1
        return self.value > other.value

    def __neg__(self):
        return self._do(-self.value)

    def to(self, function):
        return self._do(function(self.value))


def total(values):
    first, *rest = values
    for value in rest:
        first = first + value
    return first


def rms_norm(x, dy, w):
    out, dx, dw = [], [], []
    for row in x:
        root = (total([v * v for v in row]) / len(row) + 1e-6).to(lambda v: v**-0.5)
        out.append([v * root * s for v, s in zip(row, w)])
    forward = Number.count
    for row, slope in zip(x, dy):
        root = Number((sum(v.value**2 for v in row) / len(row) + 1e-6) ** -0.5)
        hat = [v * root for v in row]
        g = [d * s for d, s in zip(slope, w)]
        mean = total([a * b for a, b in zip(g, hat)]) / len(row)
        dx.append([(a - h * mean) * root for a, h in zip(g, hat)])
        dw.append([d * h for d, h in zip(slope, hat)])
    return forward, (out, dx, [total(column) for column in zip(*dw)])


def layer_norm(x, dy, w):
    out, dx, dw, stored = [], [], [], []
    for row in x:
        mean = total(row) / len(row)
        shifted = [v - mean for v in row]
        root = (total([v * v for v in shifted]) / len(row) + 1e-5).to(lambda v: v**-0.5)
        out.append([v * root * s + s for v, s in zip(shifted, w)])
        stored.append((mean, root))
    forward = Number.count
    for row, slope, (mean, root) in zip(x, dy, stored):
        hat = [(v - mean) * root for v in row]
        g = [d * s for d, s in zip(slope, w)]
        first = total(g) / len(row)
        second = total([a * b for a, b in zip(g, hat)]) / len(row)
        dx.append([(a - first - h * second) * root for a, h in zip(g, hat)])
        dw.append([d * h for d, h in zip(slope, hat)])
    db = [total(column) for column in zip(*dy)]
    return forward, (out, dx, [total(column) for column in zip(*dw)], db)


def numbers(values):
    return [[Number(v) for v in row] for row in values.tolist()]


def plain(values):
    return torch.tensor([[v.value for v in row] for row in values], dtype=torch.float64)


@given(rows=st.integers(1, 5), width=st.integers(1, 6), seed=st.integers(0, 99))
@few
def test_norms_do_the_arithmetic_that_the_model_counts(rows, width, seed):
    torch.manual_seed(seed)
    x, dy = (torch.randn(rows, width, dtype=torch.float64, requires_grad=True) for _ in range(2))
    w = torch.randn(width, dtype=torch.float64, requires_grad=True)
    for counting, torchs, forward, backward in (
        (rms_norm, lambda: F.rms_norm(x, (width,), w, 1e-6), work.rms_norm, work.rms_norm_backward),
        (
            layer_norm,
            lambda: F.layer_norm(x, (width,), w, w.detach(), 1e-5),
            work.layer_norm,
            work.layer_norm_backward,
        ),
    ):
        Number.count = 0
        first, (out, dx, dw, *_) = counting(numbers(x), numbers(dy), numbers(w[None])[0])
        assert (first, Number.count - first) == (forward(rows, width, 4).flop, backward(rows, width, 4).flop)
        theirs = torchs()
        gradients = torch.autograd.grad(theirs, (x, w), dy)
        assert torch.allclose(plain(out), theirs) and torch.allclose(plain(dx), gradients[0])
        assert torch.allclose(plain([dw])[0], gradients[1])


def log_softmax(row):
    top = row[0]
    for value in row[1:]:
        top = value if value > top else top
    shifted = [value - top for value in row]
    return shifted, [value.to(math.exp) for value in shifted]


@given(rows=st.integers(1, 5), width=st.integers(1, 6), seed=st.integers(0, 99))
@few
def test_softmax_and_loss_do_the_arithmetic_that_the_model_counts(rows, width, seed):
    torch.manual_seed(seed)
    x = torch.randn(rows, width, dtype=torch.float64, requires_grad=True)
    dy = torch.randn(rows, width, dtype=torch.float64)
    target = torch.randint(width, (rows,))
    Number.count, out = 0, []
    for row in numbers(x):
        _, powers = log_softmax(row)
        whole = total(powers)
        out.append([power / whole for power in powers])
    assert Number.count == work.softmax(rows, width, 4).flop and torch.allclose(plain(out), x.softmax(-1))
    Number.count, dx = 0, []
    for row, slope in zip(out, numbers(dy)):
        weighted = total([a * b for a, b in zip(row, slope)])
        dx.append([(d - weighted) * p for d, p in zip(slope, row)])
    assert Number.count == work.softmax_backward(rows, width, 4).flop
    assert torch.allclose(plain(dx), torch.autograd.grad(x.softmax(-1), x, dy)[0])

    Number.count, losses, tops = 0, [], []
    for row, place in zip(numbers(x), target):
        shifted, powers = log_softmax(row)
        whole = total(powers).to(math.log)
        losses.append(-[value - whole for value in shifted][place])
        tops.append(Number(row[0].value - shifted[0].value + whole.value))
    loss = total(losses) / rows
    assert Number.count == work.cross_entropy(rows, width, 4).flop
    assert loss.value == pytest.approx(F.cross_entropy(x, target).item())
    Number.count, dx = 0, []
    for row, top, place in zip(numbers(x), tops, target):
        share = [(value - top).to(math.exp) for value in row]
        share[place] = share[place] - 1
        dx.append([value * (1 / rows) for value in share])
    assert Number.count == work.cross_entropy_backward(rows, width, 4).flop
    assert torch.allclose(plain(dx), torch.autograd.grad(F.cross_entropy(x, target), x)[0])


def test_pointwise_operators_do_the_arithmetic_that_the_table_counts():
    half = math.sqrt(0.5)
    sigmoid = lambda v: Number(1) / ((-v).to(math.exp) + 1)
    one = {
        "silu": lambda v: v / ((-v).to(math.exp) + 1),
        "gelu": lambda v: v * 0.5 * ((v * half).to(math.erf) + 1),
        "sigmoid": sigmoid,
        "tanh": lambda v: v.to(math.tanh),
    }
    gelu_slope = lambda v: (
        ((v * half).to(math.erf) + 1) * 0.5 + v * ((v * v * -0.5).to(math.exp) * (1 / math.sqrt(2 * math.pi)))
    )
    two = {
        "silu_backward": lambda g, v: (s := sigmoid(v)) and g * s * ((Number(1) - s) * v + 1),
        "gelu_backward": lambda g, v: g * gelu_slope(v),
        "sigmoid_backward": lambda g, y: g * y * (Number(1) - y),
        "tanh_backward": lambda g, y: g * (Number(1) - y * y),
        "lerp": lambda a, b: a + (b - a) * 0.5,
    }
    for value, slope in product((-1.5, -0.2, 0.3, 2.0), repeat=2):
        x, g = torch.tensor(value, dtype=torch.float64), torch.tensor(slope, dtype=torch.float64)
        for name, function in one.items():
            Number.count = 0
            got = function(Number(value))
            assert Number.count == work.ONE_INPUT[name], name
            assert got.value == pytest.approx(getattr(aten, name)(x).item()), name
        for name, function in two.items():
            Number.count = 0
            got = function(Number(slope), Number(value))
            assert Number.count == work.TWO_INPUTS[name], name
            theirs = aten.lerp(g, x, 0.5) if name == "lerp" else getattr(aten, name)(g, x)
            assert got.value == pytest.approx(theirs.item()), name


def test_adamw_does_the_arithmetic_that_the_model_counts():
    p = torch.tensor([0.7, -0.4], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.AdamW([p], lr=0.1, weight_decay=0.2)
    mine, moments = [Number(0.7), Number(-0.4)], [[Number(0), Number(0)], [Number(0), Number(0)]]
    for step, gradient in enumerate(((0.3, -0.1), (0.2, 0.5)), start=1):
        p.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
        Number.count = 0
        rate, root = 0.1 / (1 - 0.9**step), math.sqrt(1 - 0.999**step)
        for i, g in enumerate(map(Number, gradient)):
            value = mine[i] * (1 - 0.1 * 0.2)
            first = moments[0][i] = moments[0][i] + (g - moments[0][i]) * (1 - 0.9)
            second = moments[1][i] = moments[1][i] * 0.999 + g * g * (1 - 0.999)
            mine[i] = value - first * rate / (second.to(math.sqrt) / root + 1e-8)
        assert Number.count == work.adamw(2).flop
    assert [v.value for v in mine] == pytest.approx(p.tolist())
    assert work.adamw(10).bytes == 10 * 7 * 4 and work.adamw(10, element_bytes=2).bytes == 10 * (3 * 2 + 4 * 4)


def test_a_fused_kernel_saves_the_tensors_between_its_parts():
    add, norm = work.elementwise(800, 2, 2), work.rms_norm(10, 80, 2)
    both = work.fused([add, norm], between=1600)
    assert both.flop == add.flop + norm.flop
    assert both.bytes == 2 * (800 + 800 + 80 + 800)
    assert (add + norm).bytes - both.bytes == 2 * 1600


def test_operators_without_shapes_or_model_have_no_work():
    for name in ("aten::mm", "aten::linear", "Optimizer.step", "aten::_fused_adamw_", "aten::add"):
        assert work_of(Event(name, "cpu_op", 0, 1, (0, 0))) is None
    transposed = Event("aten::mm", "cpu_op", 0, 1, (0, 0), ((3, 4), (3, 4)), (4, 4))
    assert work_of(transposed) is None


extents = st.tuples(*[st.integers(-2, 5)] * 1) | st.tuples() | st.lists(st.integers(-2, 5), max_size=5).map(tuple)
names = st.sampled_from([*MODELS, *work.ONE_INPUT, *work.TWO_INPUTS, *work.THREE_INPUTS, "_fused_adamw_", "add_"])


@given(name=names, shapes=st.lists(extents, max_size=6), sizes=st.lists(st.sampled_from((0, 2, 4)), max_size=6))
@settings(max_examples=400, deadline=None)
def test_no_event_makes_the_models_fail(name, shapes, sizes):
    event = Event(f"aten::{name}", "cpu_op", 0, 1, (0, 0), tuple(shapes), tuple(sizes))
    found = work_of(event)
    assert found is None or (found.flop >= 0 and found.bytes >= 0)
