"""Programs that IREE compiled: run by IREE's own program and by the course's dispatch, against float64 and GLSL."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from helpers.edge import bounds, iree, kernels, spirv
from helpers.edge.vulkan import NoVulkan, driver

ABSENT = iree.why_not()
needs_iree = pytest.mark.skipif(bool(ABSENT), reason=ABSENT or "IREE is installed")
PRODUCT, ROWS = (21, 19, 26), (3, 300)  # of sizes that no tile divides
TWO_STEPS = """\
func.func @both(%a: tensor<5x7xf32>, %b: tensor<7x9xf32>) -> tensor<5x9xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<5x9xf32>
  %filled = linalg.fill ins(%zero : f32) outs(%empty : tensor<5x9xf32>) -> tensor<5x9xf32>
  %c = linalg.matmul ins(%a, %b : tensor<5x7xf32>, tensor<7x9xf32>) outs(%filled : tensor<5x9xf32>) -> tensor<5x9xf32>
  %y = linalg.softmax dimension(1) ins(%c : tensor<5x9xf32>) outs(%empty : tensor<5x9xf32>) -> tensor<5x9xf32>
  return %y : tensor<5x9xf32>
}
"""
ANY_LENGTH = """\
func.func @twice(%a: tensor<?xf32>) -> tensor<?xf32> {
  %b = arith.addf %a, %a : tensor<?xf32>
  return %b : tensor<?xf32>
}
"""


@cache
def compiled(text):
    return iree.compile_program(text)


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def dispatch(device, program, shape, *arrays):
    (only,) = program.dispatches
    buffers = [*map(device.upload, arrays), device.buffer(shape)]
    device.kernel(only.spirv).run(only.groups, buffers)
    return np.array(buffers[-1].array())


def same_bits(one, other):
    return np.array_equal(one.view(np.uint32), other.view(np.uint32))


@needs_iree
def test_a_product_by_iree_by_our_dispatch_and_by_our_kernel(any_device, any_driver, driver_name):
    m, k, n = PRODUCT
    a, b = draw(m, m, k), draw(k, k, n)
    program, truth, bound = compiled(iree.matmul(m, k, n)), a.astype(float) @ b, bounds.dot_bound(a, b)
    (by_iree,) = iree.run(program, "matmul", a, b, driver=any_driver)
    by_us, c = dispatch(any_device, program, (m, n), a, b), any_device.buffer((m, n))
    kernels.Matmul(any_device, "tiled").run(any_device.upload(a), any_device.upload(b), c)
    assert max(bounds.error_ratio(found, truth, bound) for found in (by_iree, by_us, c.array())) <= 1
    assert same_bits(by_iree, by_us)
    if driver_name in ("lavapipe", "swiftshader"):  # another driver may fuse a product with a sum
        assert same_bits(by_us, c.array())  # both add along K from 0 on


@needs_iree
def test_a_softmax_in_one_dispatch(any_device, any_driver):
    x = 4 * draw(0, *ROWS)
    program = compiled(iree.softmax(*ROWS))
    (by_iree,) = iree.run(program, "softmax", x, driver=any_driver)
    by_us, y = dispatch(any_device, program, ROWS, x), any_device.buffer(ROWS)
    kernels.Softmax(any_device).run(any_device.upload(x), y)
    found = (by_iree, by_us, y.array())
    assert max(bounds.error_ratio(one, bounds.softmax(x), bounds.softmax_bound(x, ROWS[1])) for one in found) <= 1
    assert same_bits(by_iree, by_us)


@needs_iree
@pytest.mark.parametrize("text", [iree.matmul(*PRODUCT), iree.softmax(*ROWS)])
def test_a_module_validates_and_covers_what_it_computes(text):
    (only,) = compiled(text).dispatches
    spirv.validate(only.spirv)
    found = spirv.reflect(only.spirv)
    assert found.entry == only.name and found.push_bytes == 0
    assert found.bindings == tuple(range(text.count("%a:") + text.count("%b:") + text.count("%x:") + 1))
    assert only.groups and min(only.groups) >= 1


@needs_iree
def test_a_program_of_two_kernels():
    program = compiled(TWO_STEPS)
    product, softmax = program.dispatches
    assert "matmul" in product.name and "softmax" in softmax.name
    a, b = draw(0, 5, 7), draw(1, 7, 9)
    lavapipe = driver("lavapipe")
    if lavapipe.why_not:
        pytest.skip(lavapipe.why_not)
    (y,) = iree.run(program, "both", a, b, driver=lavapipe)
    c = a.astype(float) @ b
    truth, off = bounds.softmax(c), bounds.dot_bound(a, b).max()
    # An input that is off by at most δ changes a softmax by a factor of at most exp(2·δ).
    assert bounds.error_ratio(y, truth, bounds.softmax_bound(c, 9) + truth * np.expm1(2 * off)) <= 1


@needs_iree
def test_a_length_that_is_known_at_run_time_only():
    (only,) = compiled(ANY_LENGTH).dispatches
    assert only.groups is None and spirv.reflect(only.spirv).push_bytes > 0
    lavapipe = driver("lavapipe")
    if lavapipe.why_not:
        pytest.skip(lavapipe.why_not)
    (doubled,) = iree.run(compiled(ANY_LENGTH), "twice", np.arange(5, dtype=np.float32), driver=lavapipe)
    assert doubled.tolist() == [0, 2, 4, 6, 8]


@needs_iree
def test_what_does_not_compile_names_the_line():
    wrong = iree.matmul(2, 3, 4).replace("tensor<4x", "tensor<5x").replace("tensor<3x4xf32>)\n", "tensor<3x5xf32>)\n")
    for text, what, line in (
        (iree.matmul(2, 3, 4).replace("return %c", "return %d"), "undeclared", 7),
        (wrong, "expects different type", 5),
    ):
        with pytest.raises(iree.ProgramError, match=what) as caught:
            iree.compile_program(text)
        assert caught.value.where == f"line {line}: {text.splitlines()[line - 1].strip()}"
    with pytest.raises(iree.ProgramError) as caught:
        iree.compile_program("")
    assert caught.value.where == "the whole program"


@needs_iree
def test_what_does_not_run_is_named():
    m, k, n = PRODUCT
    program, a, b = compiled(iree.matmul(m, k, n)), draw(0, m, k), draw(1, k, n)
    lavapipe = driver("lavapipe")
    if lavapipe.why_not:
        pytest.skip(lavapipe.why_not)
    calls = (
        ("nothing", (a, b), "no function `nothing`"),
        ("matmul", (a,), "expected 2 arguments"),
        ("matmul", (b, a), "shape dimension 0 mismatch"),
        ("matmul", (a.astype(float), b), "element type mismatch"),
    )
    for function, arrays, what in calls:
        with pytest.raises(iree.RunError, match=what):
            iree.run(program, function, *arrays, driver=lavapipe)
    with pytest.raises(NoVulkan, match="no-such-driver"):
        iree.run(program, "matmul", a, b, driver=driver("no-such-driver"))
    newer = driver("lavapipe-newer")
    if not newer.why_not:
        with pytest.raises(iree.RunError, match="newer C library"):
            iree.run(program, "matmul", a, b, driver=newer)


def test_without_iree_the_reason_says_what_to_install(monkeypatch):
    pins = (Path(__file__).parents[2] / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert set(iree.INSTALL.removeprefix("pip install ").split()) <= set(pins)
    monkeypatch.setattr(iree, "PACKAGES", ("no-such-package",))
    monkeypatch.setattr(iree, "why_not", iree.why_not.__wrapped__)
    assert iree.why_not() == f"no-such-package is not installed: {iree.INSTALL}"
    for call in (lambda: iree.compile_program(""), lambda: iree.tool("iree-run-module"), iree.version):
        with pytest.raises(iree.IreeUnavailable, match="no-such-package is not installed") as caught:
            call()
        assert caught.value.mend == iree.INSTALL


def test_what_the_compiler_wrote_down_is_read(tmp_path):
    """Kernels by name, also where the name of one ends another's; counts that are no constants are not known."""
    export = "hal.executable.export public @{} ordinal(0) count(%a: !hal.device) -> (index, index, index) {{\n{}}}\n"
    known = "%c1 = arith.constant 1 : index\n%c45 = arith.constant 45 : index\nhal.return %c45, %c1, %c1 : index\n"
    kernels_of = {
        "f_dispatch_0": ("f_dispatch_0_x", known),
        "my_f_dispatch_0": ("my_f_dispatch_0_x", "hal.return %x, %y, %z"),
    }
    text = ""
    for executable, (name, body) in kernels_of.items():
        text += f"  hal.executable private @{executable} {{\n{export.format(name, body)}}}\n"
        (tmp_path / f"module_{executable}_{name}.spv").write_bytes(name.encode())
    (tmp_path / "stdin.10.executable-targets.mlir").write_text("module {\n" + text + "}\n")
    found = tuple(iree._dispatches(tmp_path))
    assert found == (
        iree.CompiledDispatch("f_dispatch_0_x", (45, 1, 1), b"f_dispatch_0_x"),
        iree.CompiledDispatch("my_f_dispatch_0_x", None, b"my_f_dispatch_0_x"),
    )
