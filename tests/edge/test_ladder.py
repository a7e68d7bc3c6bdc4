"""The matmul ladder: what each rung moves, what it refuses, and that all rungs agree."""

import itertools
import json
import os
import subprocess

import numpy as np
import pytest

from helpers.edge import bounds
from helpers.edge.figures import ladder_figure
from helpers.edge.kernels import ArgumentError, CooperativeMatmul, Matmul, Rung, cooperative_shapes, why_not
from helpers.edge.matmul import MatmulError
from helpers.edge.vulkan import MatrixShape
from helpers.measure import measured

SIZES = [(1, 1, 1), (64, 64, 64), (65, 130, 70), (3, 257, 2), (200, 12, 36), (16, 7, 128)]


def matrices(m, k, n, seed=0):
    random = np.random.default_rng(seed)
    return random.standard_normal((m, k), np.float32), random.standard_normal((k, n), np.float32)


@pytest.mark.parametrize("rung", Rung)
def test_every_rung_is_within_the_bound(any_device, rung):
    if reason := why_not(any_device.info, rung):
        pytest.skip(f"{any_device.info.name}: {reason}")
    matmul = Matmul(any_device, rung)
    for m, k, n in SIZES:
        a, b = matrices(m, k, n)
        c = any_device.upload(np.full((m, n), np.nan, np.float32))
        matmul.run(any_device.upload(a), any_device.upload(b), c)
        assert bounds.error_ratio(c.array(), a.astype(float) @ b, bounds.dot_bound(a, b)) <= 1, (m, k, n)


@pytest.mark.parametrize("rung", Rung)
def test_one_nan_spoils_its_own_row_or_column_only(device, rung):
    """A tile that reads past a row's end, and multiplies what it finds by zero, would spoil others."""
    if reason := why_not(device.info, rung):
        pytest.skip(reason)
    for m, k, n in [(20, 10, 12), (9, 5, 7)]:
        a, b = matrices(m, k, n)
        a[4, 0] = b[0, 5] = np.nan
        c = device.buffer((m, n))
        Matmul(device, rung).run(device.upload(a), device.upload(b), c)
        assert np.array_equal(np.isnan(c.array()), np.isnan(a @ b))


@pytest.mark.parametrize(
    ("rung", "sizes"),
    [
        ("naive", {"tile": 4}),
        ("register", {"side": 4, "rows": 2, "columns": 3, "depth": 5}),
        ("vector", {"side": 4, "rows": 3, "columns": 1, "depth": 1}),
        ("subgroup", {"rows": 3, "columns": 1, "lanes": 2}),
        ("subgroup", {"rows": 2, "columns": 2, "group": 32}),
        ("wide", {"rows": 1, "columns": 1, "lanes": 1}),
    ],
)
def test_other_tiles_give_the_same_numbers(device, rung, sizes):
    a, b = matrices(45, 36, 52)
    results = []
    for matmul in (Matmul(device, rung), Matmul(device, rung, **sizes)):
        c = device.buffer((45, 52))
        matmul.run(device.upload(a), device.upload(b), c)
        results.append(c.array().copy())
    assert np.array_equal(*results)  # each adds along K in order


def count(matmul, m, k, n):
    """(elements loaded from buffers, from shared memory, stored to it) by walking every loop of the shader."""
    c, rows_of_c, outside, inside, stores = matmul.constants, matmul.tile, 0, 0, 0
    workgroups = (m // rows_of_c[0]) * (n // rows_of_c[1])
    for _ in range(workgroups):
        if matmul.rung == Rung.NAIVE:
            outside += sum(2 for _ in itertools.product(range(c["tile"]), range(c["tile"]), range(k)))
        elif matmul.rung in (Rung.SUBGROUP, Rung.WIDE):
            width = 1 if matmul.rung == Rung.SUBGROUP else 2
            for _, _ in itertools.product(range(c["group"]), range(0, k, c["lanes"] * width)):
                outside += width * (c["rows"] + c["lanes"] * width * c["columns"])
        elif matmul.rung == Rung.TILED:
            for _, _ in itertools.product(range(c["tile"] ** 2), range(0, k, c["tile"])):
                outside, stores, inside = outside + 2, stores + 2, inside + 2 * c["tile"]
        else:
            width = 1 if matmul.rung == Rung.REGISTER else 4
            depth = c["depth"] * width
            for _ in range(0, k, depth):
                tile = depth * (rows_of_c[0] + rows_of_c[1])
                outside, stores = outside + tile, stores + tile
                inside += c["side"] ** 2 * depth * (c["rows"] + width * c["columns"])
    return outside, inside, stores


@pytest.mark.parametrize("rung", Rung)
def test_traffic_is_what_walking_the_loops_counts(device, rung):
    if reason := why_not(device.info, rung):
        pytest.skip(reason)
    matmul, (m, k, n) = Matmul(device, rung), (64, 64, 64)
    assert m % matmul.tile[0] == n % matmul.tile[1] == 0
    traffic = matmul.traffic(m, k, n)
    outside, inside, stores = count(matmul, m, k, n)
    assert traffic.flop == 2 * m * k * n
    assert traffic.global_bytes == 4 * (outside + m * n)
    assert traffic.shared_bytes == 4 * (inside + stores)
    width = {Rung.VECTOR: 4, Rung.WIDE: 2}.get(rung, 1)
    assert traffic.loads == (outside + inside) // width


def test_each_rung_loads_less_from_buffers_or_with_fewer_instructions(device):
    there = [rung for rung in Rung if not why_not(device.info, rung)]
    traffic = [Matmul(device, rung).traffic(256, 256, 256) for rung in there]
    naive, tiled, register, vector = traffic[:4]
    assert naive.intensity < tiled.intensity < register.intensity
    assert naive.loads_per_multiply_add == 2 and tiled.loads_per_multiply_add > 2  # shared memory is loaded too
    assert tiled.loads > register.loads > vector.loads


def test_sizes_that_wide_loads_cannot_take_go_to_the_rung_below(device):
    for rung, below in (("vector", "register"), ("wide", "subgroup")):
        if why_not(device.info, rung):
            continue
        matmul = Matmul(device, rung)
        odd = [device.buffer(shape) for shape in ((3, 5), (5, 7), (3, 7))]
        even = [device.buffer(shape) for shape in ((3, 4), (4, 8), (3, 8))]
        assert matmul.calls(*odd)[0].kernel is Matmul(device, below).kernel
        assert matmul.calls(*even)[0].kernel is matmul.kernel


def test_what_a_rung_cannot_take_is_named(device):
    with pytest.raises(MatmulError, match="shapes"):
        Matmul(device).run(device.buffer((2, 3)), device.buffer((4, 5)), device.buffer((2, 5)))
    with pytest.raises(ArgumentError, match="there is no size depth"):
        Matmul(device, "naive", depth=3)
    with pytest.raises(ArgumentError, match="use 1 or more"):
        Matmul(device, "register", rows=0)
    with pytest.raises(ArgumentError, match=r"64 lanes in subgroups of \d+"):
        Matmul(device, "subgroup", lanes=64)
    with pytest.raises(ValueError, match="stairs"):
        Matmul(device, "stairs")


def test_a_rung_that_the_device_lacks_is_refused_with_the_reason(any_device):
    for rung in Rung:
        if reason := why_not(any_device.info, rung):
            with pytest.raises(ArgumentError, match=f"no rung {rung}: {reason}"):
                Matmul(any_device, rung)
    if not cooperative_shapes(any_device.info, "f16"):
        with pytest.raises(ArgumentError, match=r"no rung cooperative f16: .*VK_KHR_cooperative_matrix"):
            CooperativeMatmul(any_device)
    with pytest.raises(ArgumentError, match="matrices of f64"):
        CooperativeMatmul(any_device, "f64")


def test_the_figure_has_every_rung_under_the_roof():
    from matplotlib import pyplot

    rungs = {"naive": (0.25, measured(1e9, "FLOP/s")), "tiled": (4.0, measured(3e9, "FLOP/s"))}
    figure = ladder_figure(rungs, measured(8e10, "FLOP/s"), measured(1e10, "B/s"))
    (axes,) = figure.axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert {"naive", "tiled", "roofline"} <= set(lines) and {text.get_text() for text in axes.texts} == set(rungs)
    assert lines["tiled"].get_xydata().tolist() == [[4.0, 3e9]]
    assert lines["naive"].get_marker() != lines["tiled"].get_marker()  # not by colour alone
    x, y = lines["roofline"].get_data()
    assert x[1] == 8 and y[1] == y[2] == 8e10 and y[0] == x[0] * 1e10
    pyplot.close(figure)


COOPERATIVE = """
import json
import numpy as np
from helpers.edge import bounds
from helpers.edge.figures import ladder_figure
from helpers.edge.kernels import ArgumentError, CooperativeMatmul, cooperative_shapes
from helpers.edge.vulkan import MatrixShape, open_device

found = {"ratios": {}, "exact": {}, "refused": []}
random = np.random.default_rng(0)
with open_device("llvmpipe") as device:
    for m, k, n in [(1, 1, 1), (16, 16, 16), (64, 32, 48), (37, 50, 29), (8, 100, 8), (64, 7, 64), (33, 64, 96)]:
        for rows, columns in ((1, 1), (2, 2), (1, 3)):
            a, b = (random.standard_normal(s).astype(np.float16) for s in ((m, k), (k, n)))
            c = device.buffer((m, n))
            CooperativeMatmul(device, "f16", rows=rows, columns=columns).run(device.upload(a), device.upload(b), c)
            ratio = bounds.error_ratio(c.array(), a.astype(float) @ b, bounds.dot_bound(a, b))
            found["ratios"][f"{m} {k} {n} {rows} {columns}"] = ratio
            a, b = (random.integers(-128, 128, s, dtype=np.int8) for s in ((m, k), (k, n)))
            c = device.buffer((m, n), np.int32)
            CooperativeMatmul(device, "s8", rows=rows, columns=columns).run(device.upload(a), device.upload(b), c)
            found["exact"][f"{m} {k} {n} {rows} {columns}"] = bool((c.array() == a.astype(np.int64) @ b).all())
    found["shapes"] = [str(shape) for shape in cooperative_shapes(device.info, "f16")]
    try:
        CooperativeMatmul(device, "f16", MatrixShape(16, 16, 16, "f16", "f32"))
    except ArgumentError as error:
        found["refused"].append(error.what)
    try:
        buffers = device.buffer((8, 8)), device.buffer((8, 8)), device.buffer((8, 8))
        CooperativeMatmul(device, "f16").run(*buffers)
    except ArgumentError as error:
        found["refused"].append(error.what)
    found["messages"] = [message.text for message in device.take_messages()]
print(json.dumps(found))
"""


def test_cooperative_matrix_for_real(newer_mesa):
    """fp16 within the bound of fp32 sums, and int8 exactly, whether tiles are whole, aligned or neither."""
    done = subprocess.run(
        [*newer_mesa.python, "-c", COOPERATIVE],
        env=os.environ | newer_mesa.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert max(found["ratios"].values()) <= 1, found["ratios"]
    assert all(found["exact"].values()), found["exact"]
    assert found["shapes"] == ["8×8×8 f16→f32"]
    assert found["refused"] == ["the device does not list 16×16×16 f16→f32", "a is float32"]
    assert found["messages"] == []


def test_shapes_are_chosen_by_what_they_take_and_give():
    class Info:
        cooperative_matrix = (
            MatrixShape(16, 16, 16, "f16", "f16"),
            MatrixShape(16, 16, 32, "s8", "s32", saturating=True),
            MatrixShape(128, 128, 16, "f16", "f32", scope="workgroup"),
            MatrixShape(16, 8, 8, "f16", "f32"),
            MatrixShape(16, 16, 32, "s8", "s32"),
        )

    assert cooperative_shapes(Info, "f16") == (Info.cooperative_matrix[3],)
    assert cooperative_shapes(Info, "s8") == (Info.cooperative_matrix[4],)
