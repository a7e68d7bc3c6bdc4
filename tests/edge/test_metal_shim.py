"""The stand-in for Metal's library, against NumPy."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from metal_kit import HEADER, needs_shim, run, text

from helpers.edge.metal import DataRace, cases, shim_library
from helpers.edge.metal import build as building
from helpers.edge.metal.text import Parameter, for_cpp, read_kernels, swizzles, tokens

pytestmark = needs_shim
WIDTHS = (4, 8, 16, 32)


def floats(n, seed=0):
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def rows(x, width):
    """x by simdgroup, the last one filled with NaN: (simdgroups, width)."""
    padded = np.full(-(-len(x) // width) * width, np.nan, np.float32)
    padded[: len(x)] = x
    return padded.reshape(-1, width)


def fold(x, width, combine):
    """Each simdgroup's fold from its first lane upwards in fp32, for every lane."""
    result = []
    for row in rows(x, width):
        held = row[~np.isnan(row)]
        total = held[0]
        for value in held[1:]:
            total = combine(total, value)
        result += [total] * len(held)
    return np.array(result, np.float32)


FOLDS = """
y[4 * i] = simd_sum(x[i]);
y[4 * i + 1] = simd_max(x[i]);
y[4 * i + 2] = simd_product(x[i]);
y[4 * i + 3] = simd_prefix_inclusive_sum(x[i]) - simd_prefix_exclusive_sum(x[i]);
"""


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("n", [1, 7, 40, 64])
def test_folds_over_lanes_that_differ(width, n):
    x, y = floats(n), np.zeros((n, 4), np.float32)
    run(text(FOLDS, "device const float* x, device float* y"), x, y, width=width, threads=n, group_size=n)
    assert np.array_equal(y[:, 0], fold(x, width, np.add))
    assert np.array_equal(y[:, 1], fold(x, width, np.maximum))
    assert np.array_equal(y[:, 2], fold(x, width, np.multiply))
    assert np.allclose(y[:, 3], x, atol=1e-5)


SHUFFLES = """
int v = x[i];
y[8 * i] = simd_broadcast(v, 1);
y[8 * i + 1] = simd_shuffle(v, ushort(lanes - 1 - lane));
y[8 * i + 2] = simd_shuffle_xor(v, 3);
y[8 * i + 3] = simd_shuffle_rotate_down(v, 1);
y[8 * i + 4] = simd_shuffle_and_fill_down(v, -1 - int(lane), 2);
y[8 * i + 5] = lane >= 1 ? simd_shuffle_up(v, 1) : 0;
y[8 * i + 6] = quad_sum(v);
y[8 * i + 7] = int(ulong(simd_ballot(v % 2 == 0)));
"""


@pytest.mark.parametrize("width", WIDTHS)
def test_shuffles(width):
    n = 2 * width
    x, y = np.random.default_rng(1).integers(0, 1000, n).astype(np.int32), np.zeros((n, 8), np.int32)
    source = text(
        SHUFFLES.replace("lane >= 1 ? simd_shuffle_up(v, 1) : 0", "simd_shuffle_up(v, 1)"),
        "device const int* x, device int* y",
    )
    run(source, x, y, width=width, threads=n, group_size=n)
    by_group, lane = x.reshape(-1, width), np.arange(width)
    got = y.reshape(-1, width, 8)
    assert np.array_equal(got[..., 0], np.repeat(by_group[:, 1:2], width, axis=1))
    assert np.array_equal(got[..., 1], by_group[:, ::-1])
    assert np.array_equal(got[..., 2], by_group[:, lane ^ 3])
    assert np.array_equal(got[..., 3], np.roll(by_group, -1, axis=1))
    # Lanes beyond the end take the fill of lanes 0, 1, …
    assert np.array_equal(got[:, :-2, 4], by_group[:, 2:]) and np.array_equal(got[:, -2:, 4], [[-1, -2]] * 2)
    assert np.array_equal(got[:, 1:, 5], by_group[:, :-1]) and (got[:, 0, 5] == -1).all()  # no such lane: all ones
    assert np.array_equal(got[..., 6], np.repeat(x.reshape(-1, 4).sum(axis=1), 4).reshape(-1, width))
    votes = ((by_group % 2 == 0) * 2 ** lane.astype(np.int64)).sum(axis=1)
    assert np.array_equal(got[:, 0, 7].astype(np.uint32), votes.astype(np.uint32))


def test_lanes_that_branch_fold_among_themselves_and_meet_again():
    body = """
    float own = x[i];
    if (lane % 2 == 0) {
        own = simd_sum(own);
    } else if (lane == 1) {
        own = simd_sum(own) * 10;
    }
    for (uint k = 0; k < lane; k++) own += simd_max(float(k));
    x[i] = own + simd_sum(1.0f);
    """
    x = np.arange(8, dtype=np.float32)
    run(text(body), x, width=8, group_size=8)
    own = np.array([12, 10, 12, 3, 12, 5, 12, 7], np.float32)
    assert np.array_equal(x, own + [sum(range(lane)) for lane in range(8)] + 8)


def test_positions_of_a_grid_that_does_not_divide():
    source = (
        HEADER
        + """
    kernel void f(device uint* y, uint3 at [[thread_position_in_grid]], uint3 size [[threads_per_grid]],
                  ushort2 in [[thread_position_in_threadgroup]], uint2 group [[threadgroup_position_in_grid]],
                  uint2 here [[threads_per_threadgroup]], uint2 asked [[dispatch_threads_per_threadgroup]],
                  uint2 groups [[threadgroups_per_grid]], uint index [[thread_index_in_threadgroup]],
                  uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
                  uint simdgroups [[simdgroups_per_threadgroup]]) {
        device uint* own = y + 14 * (at.y * size.x + at.x);
        uint values[14] = {at.x, at.y, in.x, in.y, group.x, group.y, here.x, here.y, asked.x, groups.x, index, lane,
                           simdgroup, simdgroups};
        for (uint k = 0; k < 14; k++) own[k] = values[k];
    }
    """
    )
    width, height, tile = 7, 5, (4, 3)
    y = np.zeros((height, width, 14), np.uint32)
    done = run(source, y, width=4, threads=(width, height), group_size=tile)
    assert done.groups == 4
    for row in range(height):
        for column in range(width):
            group = column // 4, row // 3
            size = min(4, width - 4 * group[0]), min(3, height - 3 * group[1])
            local = column % 4, row % 3
            index = local[1] * size[0] + local[0]
            count = -(-size[0] * size[1] // 4)
            expected = [column, row, *local, *group, *size, 4, 2, index, index % 4, index // 4, count]
            assert y[row, column].tolist() == expected


def test_vectors_swizzles_and_their_layout():
    before = "struct Line { packed_float3 point; float3 normal; half2 pair; bool set; };\n"
    body = """
    float4 v = float4(x[0], float2(x[1], x[2]), 4);
    v.xy = v.yx;
    v.w *= 2;
    float3 turned = v.zxy + 1;
    turned.yz *= float2(2, 3);
    x[0] = dot(v, float4(1));  x[1] = turned.x;  x[2] = turned.y;  x[3] = turned.z;
    x[4] = sizeof(Line);  x[5] = alignof(float3);  x[6] = sizeof(packed_float3);
    x[7] = all(v.xy == float2(v.x, v.y)) + any(v < 0.0f);
    x[8] = length(float2(3, 4));  x[9] = max(v, 7.0f).w + clamp(v.rgb, 0.0f, 1.0f).b + mix(1.0f, 3.0f, 0.5f);
    x[10] = float(as_type<half2>(as_type<uint>(half2(1.5h, -2))).y);
    """
    x = np.array([10, 20, 30, *range(8)], np.float32)
    run(text(body, before=before), x, threads=1)
    # v = (20, 10, 30, 8). turned = (31, 21, 11) · (1, 2, 3). Offsets of a Line: 0, 16, 32 and 36, in steps of 16.
    assert x.tolist() == [68, 31, 42, 33, 48, 16, 12, 1, 5, 8 + 1 + 2, -2]


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
@given(st.integers(0, 2**32 - 1))
def test_half_and_bfloat_round_each_operation(seed):
    x = floats(64, seed) * 100
    body = """
    half a = half(x[2 * i]), b = half(x[2 * i + 1]);
    y[4 * i] = float(a * b + a);  y[4 * i + 1] = float(a / b);
    bfloat c = bfloat(x[2 * i]), d = bfloat(x[2 * i + 1]);
    y[4 * i + 2] = float(c + d);  y[4 * i + 3] = float(c * d);
    """
    y = np.zeros((32, 4), np.float32)
    run(text(body, "device const float* x, device float* y"), x, y, threads=32)
    pairs = x.reshape(-1, 2)
    with np.errstate(over="ignore"):
        a, b = pairs.astype(np.float16).T
        assert np.array_equal(y[:, 0], (a * b + a).astype(np.float32))
        assert np.array_equal(y[:, 1], (a / b).astype(np.float32))
    c, d = (bfloat16(column) for column in pairs.T)
    assert np.array_equal(y[:, 2], bfloat16(c + d)) and np.array_equal(y[:, 3], bfloat16(c * d))


def bfloat16(x):
    """fp32 rounded to the nearest bfloat16, ties to even."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)


INTEGERS = """
y[0] = popcount(x[0]); y[1] = clz(x[0]); y[2] = ctz(x[0]); y[3] = extract_bits(x[0], 4, 8);
y[4] = insert_bits(x[0], 5u, 4, 8); y[5] = reverse_bits(x[0]); y[6] = mulhi(x[0], 1u << 31); y[7] = rotate(x[0], 8u);
y[8] = addsat(x[0], ~0u); y[9] = subsat(1u, 2u); y[10] = absdiff(3u, 10u); y[11] = uint(select(1, 2, true));
y[12] = uint(-7 / 2 + 10); y[13] = as_type<uint>(1.0f); y[14] = mad24(3u, 4u, 5u); y[15] = clz(0u);
"""


def test_integer_functions():
    value = 0x0F0F1230
    y = np.zeros(16, np.uint32)
    run(text(INTEGERS, "device const uint* x, device uint* y"), np.array([value], np.uint32), y, threads=1)
    bits = f"{value:032b}"
    cleared = value & ~(0xFF << 4)
    rotated = (value << 8 | value >> 24) & 0xFFFFFFFF
    expected = [bits.count("1"), 4, 4, value >> 4 & 0xFF, cleared | 5 << 4, int(bits[::-1], 2), value >> 1, rotated]
    assert y.tolist() == [*expected, 0xFFFFFFFF, 0, 7, 2, 7, 0x3F800000, 17, 32]


def test_atomics_count_and_a_waiting_thread_lets_others_run():
    body = """
    atomic_fetch_add_explicit(&counts[i % 4], 1u, memory_order_relaxed);
    atomic_fetch_max_explicit(&counts[4], i, memory_order_relaxed);
    if (i == 0) while (atomic_load_explicit(&counts[5], memory_order_relaxed) == 0) {}
    if (i == 63) atomic_store_explicit(&counts[5], 1u, memory_order_relaxed);
    """
    counts = np.zeros(6, np.uint32)
    run(text(body, "device atomic_uint* counts"), counts, threads=64, group_size=64)
    assert counts.tolist() == [16, 16, 16, 16, 63, 1]


def test_the_last_threadgroup_may_read_what_the_others_wrote_behind_a_fence():
    body = """
    threadgroup bool last;
    if (local == 0) {
        x[group] = float(group) + 1;
        atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
        last = atomic_fetch_add_explicit(count, 1u, memory_order_relaxed) == 3;
        if (last) {
            atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
            for (uint k = 0; k < 4; k++) sum[0] += x[k];
        }
    }
    """
    x, total, count = np.zeros(4, np.float32), np.zeros(1, np.float32), np.zeros(1, np.uint32)
    parameters = "device float* x, device float* sum, device atomic_uint* count"
    run(text(body, parameters), x, total, count, threads=32, group_size=8)
    assert total[0] == 10
    without = body.replace("atomic_thread_fence", "// ")
    with pytest.raises(DataRace, match=r"reads x\[0\]"):
        run(text(without, parameters), x, total, np.zeros(1, np.uint32), threads=32, group_size=8)


def test_threadgroup_memory_is_new_in_each_threadgroup():
    body = """
    threadgroup float held[2], other;
    if (local == 0) { held[0] = x[i]; held[1] = 2; other = 3; }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    x[i] = held[0] * held[1] + other;
    """
    x = np.repeat(np.arange(1, 4, dtype=np.float32), 8)
    done = run(text(body), x, group_size=8)
    assert np.array_equal(x, np.repeat([5, 7, 9], 8))
    assert [(row.name, row.nbytes, row.writes) for row in done.threadgroup] == [("held", 8, 6), ("other", 4, 3)]


def test_literals_are_fp32_and_products_are_not_fused():
    x = np.array([0.1, 1 + 2**-12, -(1 + 2**-11), 0], np.float32)
    run(text("x[0] = x[0] * 0.1; x[3] = x[1] * x[1] + x[2];"), x, threads=1)
    assert x[0] == np.float32(0.1) * np.float32(0.1)
    assert x[3] == 0  # fused it would be 2⁻²⁴


def test_defaults_are_those_of_torch():
    x = np.zeros(3000, np.float32)
    done = run(text("x[i] = 1;"), x)
    assert done.threads == (3000, 1, 1) and done.group_size == (1024, 1, 1) and done.groups == 3
    assert x.all()


def test_one_array_may_stand_for_two_parameters():
    x = floats(10)
    before = x.copy()
    run(text("y[i] = 2 * x[i];", "device const float* x, device float* y"), x, x)
    assert np.array_equal(x, 2 * before)


def test_numbers_tuples_and_structs():
    before = "struct Pair { uint a; float b; };\n"
    parameters = (
        "device float* x, constant float& f, constant uint& n, constant Pair& pair, "
        "constant float3& v, constant half& h"
    )
    x = np.zeros(5, np.float32)
    values = (
        2.5,
        7,
        np.array([3], np.uint32).tobytes() + np.array([0.5], np.float32).tobytes(),
        (1.0, 2.0, 3.0, 0.0),
        1.5,
    )
    run(
        text("x[0] = f; x[1] = n; x[2] = pair.a + pair.b; x[3] = v.z; x[4] = h;", parameters, before),
        x,
        *values,
        threads=1,
        arg_casts={5: "fp16"},
    )
    assert x.tolist() == [2.5, 7, 3.5, 3, 1.5]


def test_what_was_compiled_is_not_compiled_again(monkeypatch, tmp_path):
    monkeypatch.setenv(building.CACHE_VARIABLE, str(tmp_path))
    x = np.zeros(2, np.float32)
    run(text("x[i] = 1;"), x)
    monkeypatch.setattr(building, "_compile", lambda *_: pytest.fail("compiled again"))
    run(text("x[i] = 1;"), x)
    kept = sorted(path.name.split("-")[0] for path in (tmp_path / "metal").iterdir())
    assert kept == ["msl", "msl"]  # the program and the runtime, and no draft


def test_several_kernels_of_one_text():
    library = shim_library(
        HEADER
        + "".join(
            f"kernel void {name}(device float* x, uint i [[thread_position_in_grid]]) {{ x[i] {op} 2; }}\n"
            for name, op in (("add", "+="), ("scale", "*="))
        )
    )
    x = np.ones(4, np.float32)
    library.add(x)
    library.scale(x)
    assert x.tolist() == [6] * 4 and dir(library) == ["add", "scale"]
    assert library.add.thread_execution_width == 32 and library.add.max_threads_per_threadgroup == 1024


TEXTS = [
    "threadgroup float a[4][N], b; // threadgroup float c;",
    "device const float4 *p = (device float4*)q + 1; const constant uint &n = m;",
    'threadgroup\n  atomic_uint counts[256];\nx = t[[0]]; s = "device";',
    "void f(threadgroup float* t, constant uint& n [[buffer(0)]]) { kernel_count = thread_count; }",
    "[[max_total_threads_per_threadgroup(64)]] kernel void g(thread float& x);",
]


@pytest.mark.parametrize("source", TEXTS)
def test_reading_keeps_every_character_and_every_line(source):
    assert "".join(token.text for token in tokens(source)) == source
    assert for_cpp(source).count("\n") == source.count("\n")


def test_address_spaces_become_cpp():
    assert for_cpp(TEXTS[0]).startswith(
        'auto& a = shim::shared<float[4][N]>(0, "a"); auto& b = shim::shared<float>(1, "b");'
    )
    assert "c;" in for_cpp(TEXTS[0])
    assert " ".join(for_cpp(TEXTS[1]).split()) == "const float4 *p = ( float4*)q + 1; const uint &n = m;"
    assert '"device"' in for_cpp(TEXTS[2]) and "shim::shared<atomic_uint[256]>" in for_cpp(TEXTS[2])
    assert "kernel_count = thread_count" in for_cpp(TEXTS[3]) and "[[buffer(0)]]" in for_cpp(TEXTS[3])
    assert "max_total_threads_per_threadgroup" in for_cpp(TEXTS[4])


def test_signatures_are_read():
    source = (
        "kernel void f(device const half2* a, constant P& p [[buffer(0)]], device packed_float3 *b [[buffer(3)]], "
    )
    kernels = read_kernels(source + "constant float* c, ushort2 at [[thread_position_in_grid]]) {}")
    a, p, b, c, at = kernels["f"].parameters
    assert a == Parameter("a", "half2", "device", "*", 1, "", False) and a.element == "float16"
    assert (p.type, p.buffer, p.pointer, p.element) == ("P", 0, "&", "")
    assert (b.buffer, b.writable, b.element) == (3, True, "float32") and (c.buffer, c.writable) == (2, False)
    assert at.builtin == "thread_position_in_grid" and at.buffer is None
    assert [parameter.name for parameter in kernels["f"].arguments] == ["p", "a", "c", "b"]


def test_only_swizzles_that_are_used_are_declared():
    declared = swizzles("a.xy = b.zwx + c.x + d.rgba;")
    two, three, four = declared.splitlines()
    assert " xy;" in two and "zwx" not in two and "zwx" not in three
    assert all(name in four for name in (" xy;", " zwx;", " rgba;"))


def test_fibres_of_the_c_library_do_as_well(monkeypatch, tmp_path):
    monkeypatch.setenv(building.CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(building, "COMMON", (*building.COMMON, "-DSHIM_UCONTEXT"))
    case = cases.of("scan_subgroup", 8)[2]
    assert case.error(case.run(8, shim=True)) <= 1
