"""What goes wrong in a kernel has a name, a line and a thread, and leaves arrays and kernel process alone."""

import random
import re
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metal_kit import HEADER, needs_shim, run, text

from helpers.edge.metal import (
    ArgumentsError,
    DataRace,
    Deadline,
    DivergentBarrier,
    KernelFault,
    MetalError,
    MslCompileError,
    NotMetal,
    OutOfBounds,
    ShimUnavailable,
    ThreadgroupMemory,
    UninitialisedRead,
    UnknownName,
    shim_library,
    twins,
)
from helpers.edge.metal import build as building
from helpers.edge.metal.text import check_rules, read_kernels, tokens

pytestmark = needs_shim
BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"

# Error, a part of its words, a part of its `where`, the body.
FAULTS = {
    "one past the end": (
        OutOfBounds,
        r"a read of x\[64\], which has 64 elements of 4 bytes",
        "thread \\(63",
        "x[i] = x[i + 1 == 64 ? 64 : i];",
    ),
    "far away": (OutOfBounds, r"a write of x\[1073741824\]", "line 5", "if (i == 7) x[1u << 30] = 1;"),
    "before the first": (
        OutOfBounds,
        r"x\[-5\], which lies before",
        r"thread \(2, 0, 0\)",
        "if (i == 2) x[int(i) - 7] = 1;",
    ),
    "a vector across the end": (
        OutOfBounds,
        r"a read of x\[64\]",
        "line 5",
        "if (i == 9) { float3 v = ((device packed_float3*)(x + 62))[0]; x[9] = v.x + v.z; }",
    ),
    "threadgroup memory": (
        OutOfBounds,
        r"index 64 of an array float \[64\]",
        "line 5",
        "threadgroup float t[64]; t[i + 1] = 1;",
    ),
    "through a pointer": (
        OutOfBounds,
        r"a write of t\[64\]",
        "line 5",
        "threadgroup float t[64]; threadgroup float* p = t; p[i + 1] = 1;",
    ),
    "a row too far": (
        OutOfBounds,
        r"index 4 of an array float \[4\]",
        "line 5",
        "threadgroup float t[8][4]; t[0][i] = 1;",
    ),
    "a thread's own array": (
        OutOfBounds,
        r"index 4 of an array float \[4\]",
        "line 5",
        "float own[4]; for (uint k = 0; k <= i; k++) own[k] = k; x[i] = own[i / 2];",
    ),
    "a component": (OutOfBounds, "component 4 of a vector of 4", "line 5", "float4 v = float4(1); x[i] = v[i];"),
    "no barrier": (
        UninitialisedRead,
        "byte 4 of t, which no thread has written yet",
        r"thread \(0, 0, 0\)",
        "threadgroup float t[64]; t[local] = x[i]; x[i] = t[(local + 1) % 64];",
    ),
    "a barrier for other memory": (
        DataRace,
        "reads byte 0 of t, which thread",
        "line 5",
        "threadgroup float t[64]; t[63 - local] = 1; threadgroup_barrier(mem_flags::mem_device); x[i] = t[local];",
    ),
    "a missing second barrier": (
        DataRace,
        r"writes byte 4 of t, which thread \(0, 0, 0\) reads at line 5",
        "line 5",
        f"threadgroup float t[64]; t[local] = 1; {BARRIER} float own = t[(local + 1) % 64]; t[local] = own;",
    ),
    "two writers": (
        DataRace,
        r"thread \(1, 0, 0\) writes x\[0\], which thread \(0, 0, 0\) writes",
        "line 5",
        "x[0] = i;",
    ),
    "two threadgroups": (
        DataRace,
        r"thread \(32, 0, 0\) reads x\[0\], .* thread \(0, 0, 0\) writes",
        "threadgroup \\(1, 0, 0\\)",
        "if (local == 0) x[0] += 1;",
    ),
    "a barrier in a branch": (
        DivergentBarrier,
        "61 threads wait at the threadgroup_barrier, 3 have ended",
        "line 5",
        f"if (i > 2) {BARRIER}",
    ),
    "two barriers": (
        DivergentBarrier,
        "wait elsewhere, as thread .* at line 6",
        "line 5",
        f"if (i < 5) {BARRIER} else\n{BARRIER}",
    ),
    "an early return": (
        DivergentBarrier,
        "1 have ended, as thread \\(63, 0, 0\\)",
        "line 6",
        f"if (i == 63) return;\n{BARRIER}",
    ),
    "a simdgroup's barrier": (
        DivergentBarrier,
        "4 threads wait at the simdgroup_barrier",
        "line 5",
        "if (lane < 4) simdgroup_barrier(mem_flags::mem_none);",
    ),
    "a matrix in a branch": (
        DivergentBarrier,
        "5 threads wait at the simdgroup matrix function",
        "line 5",
        "simdgroup_float8x8 m; if (lane < 5) simdgroup_load(m, x);",
    ),
    "lanes in two functions": (
        KernelFault,
        "lanes of a simdgroup wait in total and in f, and the stand-in cannot tell",
        "line 4",
        "for (uint k = 0; k < lane; k++) x[i] += simd_max(1.0f); x[i] = total(x[i]);",
    ),
    "too much threadgroup memory": (
        ThreadgroupMemory,
        "33024 bytes of threadgroup memory, with u",
        "",
        "threadgroup float t[8192]; threadgroup half u[128]; t[i] = u[0] = 1;",
    ),
    "division by zero": (KernelFault, "integer is divided by zero", "line 5", "x[i] = 1 / int(x[i]);"),
    "a full stack": (KernelFault, "stack is full", "kernel f", "if (i == 0) x[i] = deep(x, 1000000);"),
    "no pointer": (
        KernelFault,
        "a write through a pointer to nothing",
        "line 5",
        "device float* p = nullptr; p[i] = 1;",
    ),
    "a trap": (KernelFault, "the kernel died: SIGILL", "line 5", "__builtin_trap();"),
    "elements that are not there": (
        KernelFault,
        "thread_elements",
        "line 5",
        "simdgroup_float8x8 m; m.thread_elements().x = 1;",
    ),
}
DEEP = "float own[8]; own[n % 8] = p[0]; return n ? deep(p, n - 1) + own[n % 8] : 1;"
BEFORE = {
    "deep": f"float deep(device float* p, int n) {{ {DEEP} }}\n",
    "total": "float total(float own) { return simd_sum(own); }\n",
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_placed_and_harmless(name):
    error, words, where, body = FAULTS[name]
    source = text(body, before="".join(function for word, function in BEFORE.items() if f"{word}(" in body))
    x = np.zeros(64, np.float32)
    width = 16 if "thread_elements" in body else 32
    with pytest.raises(error, match=words) as caught:
        run(source, x, width=width, threads=64, group_size=32 if name == "two threadgroups" else 64)
    assert re.search(where, caught.value.where)
    assert caught.value.mend and not x.any()


def test_a_kernel_that_never_ends_is_stopped_and_named():
    x = np.zeros(4, np.float32)
    start = time.monotonic()
    with pytest.raises(Deadline, match=r"did not end within 0\.5 s") as caught:
        run(text("while (x[i] >= 0.0f) x[i] += 1;"), x, seconds=0.5)
    assert "line 5" in caught.value.where and "thread (0, 0, 0)" in caught.value.where
    assert time.monotonic() - start < 4 and not x.any()
    with pytest.raises(Deadline):
        run(text("while (true) {}"), x, seconds=0.5)
    waits = "while (atomic_load_explicit(c, memory_order_relaxed) == 0) {}"
    with pytest.raises(Deadline):
        run(text(waits, "device atomic_uint* c"), np.zeros(1, np.uint32), threads=8, seconds=0.5)


def test_a_barrier_orders_what_it_names():
    body = f"""
    threadgroup float t[64];
    t[local] = x[i];
    {BARRIER}
    float own = t[63 - local];
    {BARRIER}
    t[local] = own;
    x[i] = t[local];
    """
    x = np.arange(64, dtype=np.float32)
    run(text(body), x, group_size=64)
    assert np.array_equal(x, np.arange(64)[::-1])
    device = "threadgroup_barrier(mem_flags::mem_device);"
    run(text(f"x[i] = 1; {device} float other = x[63 - i]; {device} x[i] += other;"), x, group_size=64)
    assert (x == 2).all()
    lanes = "simdgroup_barrier(mem_flags::mem_threadgroup);"
    run(text(f"threadgroup float t[64]; t[local] = lane; {lanes} x[i] = t[local ^ 1];"), x, group_size=64, width=8)
    assert np.array_equal(x, (np.arange(64) % 8) ^ 1)


REFUSED = {
    "syntax": (MslCompileError, "expected", "line 5: x[i] = 1 +;", text("x[i] = 1 +;")),
    "a typing error": (UnknownName, "`simd_summ` is not declared", "line 5", text("x[i] = simd_summ(x[i]);")),
    "no library": (UnknownName, "`simd_sum`", "line 2", text("x[i] = simd_sum(x[i]);").replace(HEADER, "")),
    "what only Metal has": (
        UnknownName,
        "Metal has `float4x4`, and the stand-in does not",
        "line 5",
        text("float4x4 m;"),
    ),
    "a texture": (
        NotMetal,
        "the parameter t is a value",
        "line 4",
        text("x[i] = 1;", "texture2d<float> t, device float* x"),
    ),
    "fp64": (NotMetal, "no fp64", "line 5", text("double d = 1;")),
    "a bare pointer": (NotMetal, r"`float\*` has no address space", "line 5", text("float* p = 0;")),
    "a bare parameter": (NotMetal, "no address space", "line 4", text("x[i] = 1;", "float* x")),
    "a bare template": (
        NotMetal,
        "no address space",
        "line 4",
        text("x[i] = 1;", before="template <class T> T f2(T* p) { return *p; }\n"),
    ),
    "an unknown attribute": (
        NotMetal,
        r"\[\[stage_in\]\] is not known",
        "line 4",
        text("x[i] = 1;", "device float* x, uint s [[stage_in]]"),
    ),
    "a value without attribute": (
        NotMetal,
        "it has no attribute",
        "line 4",
        text("x[i] = n;", "device float* x, uint n"),
    ),
    "a foreign header": (NotMetal, "no header vector", "line 1", "#include <vector>\n" + text("x[i] = 1;")),
    "std": (NotMetal, "the library's namespace is metal", "line 5", text("x[i] = std::max(1.0f, 2.0f);")),
    "an initialiser": (NotMetal, "with an initialiser", "line 5", text("threadgroup float t = 1;")),
    "threadgroup memory in a function": (
        NotMetal,
        "outside of a kernel",
        "line 4",
        text("x[i] = 1;", before="void g() { threadgroup float t[4]; }\n"),
    ),
    "a result": (NotMetal, "returns a value", "line 4", text("").replace("kernel void", "kernel float")),
    "main": (NotMetal, "called main", "line 4", text("").replace("void f(", "void main(")),
    "nothing": (MslCompileError, "no kernel", "", HEADER),
    "half of it": (NotMetal, "never closed", "line 4", text("x[i] = 1;")[:150]),
    "no parameters": (NotMetal, "without parameters", "line 1", "kernel void f"),
    "memory from the host": (
        ArgumentsError,
        "takes threadgroup memory from the host",
        "line 4",
        text("", "threadgroup float* t [[threadgroup(0)]]"),
    ),
    "inside a header": (
        MslCompileError,
        "as_type needs two types of the same size",
        "line 5",
        text("x[i] = as_type<ushort>(x[i]);"),
    ),
    "components": (MslCompileError, "do not fill the vector", "line 5", text("x[i] = float4(1, 2, 3).x;")),
    "a constant": (MslCompileError, "read-only", "line 5", text("n = 1;", "device float* x, constant float& n")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_text_is_refused_with_its_line(name):
    error, words, where, source = REFUSED[name]
    with pytest.raises(error, match=words) as caught:
        shim_library(source)
    assert caught.value.where.startswith(where) and caught.value.mend


def test_what_is_declared_and_never_defined_is_named():
    with pytest.raises(UnknownName, match=r"`absent\(float\)` is declared and never defined"):
        shim_library(text("x[i] = absent(x[i]);", before="float absent(float x);\n"))


def test_a_spelling_is_suggested():
    for wrong, right in (("simd_summ", "simd_sum"), ("threadgroup_barier", "threadgroup_barrier"), ("rsqr", "rsqrt")):
        with pytest.raises(UnknownName) as caught:
            shim_library(text(f"x[i] = {wrong}(x[i]);"))
        assert caught.value.mend == f"did you mean {right}?"


X = np.zeros(8, np.float32)
READ_ONLY = np.zeros(8, np.float32)
READ_ONLY.flags.writeable = False
ARGUMENTS = {
    "too few": ("1 arguments for 2 buffers", (X,), {}),
    "another dtype": ("an array of float64 where the kernel reads float", (X.astype(float), 1), {}),
    "strides": ("not contiguous", (np.zeros(16, np.float32)[::2], 1), {}),
    "read-only": ("read-only", (READ_ONLY, 1), {}),
    "a float for an int": ("a number passed as float32 where the kernel reads int", (X, 1.0), {}),
    "a word": ("argument 1 is a ndarray", (X, np.array("one", object)), {}),
    "nothing": ("is", (X, ()), {}),
    "no such cast": ("the cast 'fp64'", (X, 1), {"arg_casts": {1: "fp64"}}),
    "no threads": ("threads=0", (X, 1), {"threads": 0}),
    "half a thread": ("threads=1.5", (X, 1), {"threads": 1.5}),
    "four axes": ("use one to three", (X, 1), {"threads": (1, 1, 1, 1)}),
    "other axes": ("2 counts of threads and 1", (X, 1), {"threads": (1, 1), "group_size": 1}),
    "a large threadgroup": ("has 2048 threads", (X, 1), {"threads": (64, 64), "group_size": (64, 32)}),
    "a huge grid": ("a grid of", (X, 1), {"threads": (2**16, 2**16, 1), "group_size": (1, 1, 1)}),
    "too large": ("is", (X, 2**70), {}),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_that_do_not_fit_are_refused(name):
    words, arguments, dispatch = ARGUMENTS[name]
    with pytest.raises(ArgumentsError, match=words):
        run(text("x[i] = n;", "device float* x, constant int& n"), *arguments, **dispatch)


def test_more_that_does_not_fit():
    both = text("y[i] = x[i];", "device const float* x, device float* y")
    with pytest.raises(ArgumentsError, match="two arguments overlap"):
        run(both, X[:5], X[3:])
    with pytest.raises(ArgumentsError, match="pair takes 8 bytes and was given 4"):
        run(
            text("x[i] = pair.b;", "device float* x, constant Pair& pair", "struct Pair { uint a; float b; };\n"),
            X,
            b"1234",
        )
    with pytest.raises(ArgumentsError, match="no array says how many threads"):
        run(text("", "constant uint& n"), 3)
    with pytest.raises(ArgumentsError, match="no kernel g"):
        _ = shim_library(text("")).g
    with pytest.raises(ArgumentsError, match="a simdgroup of 12 lanes"):
        shim_library(text(""), simd_width=12)
    with pytest.raises(ArgumentsError, match="for 1 buffers"):
        run(text("", "device float* x [[buffer(2)]]"), X)


def test_without_a_compiler_it_says_what_to_install(monkeypatch):
    building.compiler.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    try:
        with pytest.raises(ShimUnavailable, match="no g\\+\\+") as caught:
            shim_library(text(""))
        assert "apt-get install g++" in caught.value.mend
    finally:
        monkeypatch.undo()
        building.compiler.cache_clear()


def test_a_folder_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv(building.CACHE_VARIABLE, str(blocked))
    with pytest.raises(ShimUnavailable, match="cannot be kept"):
        shim_library(text("x[i] = 2;"))


PIECES = [
    "x",
    "i",
    "[",
    "]",
    "(",
    ")",
    "{",
    "}",
    "threadgroup",
    "device",
    "float",
    "*",
    "/",
    "%",
    ";",
    "=",
    "0",
    "[[",
    "/*",
    '"',
    "kernel",
    "<",
    "-",
]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.sampled_from(twins.names()), st.integers(0, 2**32))
def test_a_damaged_text_is_read_or_refused(name, seed):
    source = damaged(twins.msl(name), seed)
    try:
        check_rules(source)
        read_kernels(source)
    except MetalError:
        pass


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_a_damaged_kernel_runs_or_fails_by_name(seed):
    source = damaged(twins.msl("reduce_tree"), seed)
    x = np.ones(100, np.float32)
    try:
        library = shim_library(source, deadline_s=1)
        library.reduce_tree(x, np.zeros(3, np.float32), 100, threads=192, group_size=64)
    except MetalError as error:
        assert error.what
    assert (x == 1).all()


def damaged(source, seed):
    """The text with one or two of its tokens dropped, doubled or replaced."""
    draw = random.Random(seed)
    words = [token.text for token in tokens(source)]
    for _ in range(draw.randint(1, 2)):
        place = draw.randrange(len(words))
        words[place] = draw.choice(["", words[place] * 2, draw.choice(PIECES), words[draw.randrange(len(words))]])
    return "".join(words)
