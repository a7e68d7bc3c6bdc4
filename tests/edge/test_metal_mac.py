"""What runs on a Mac only, here against a stand-in for torch.mps with torch's own signatures; and the receipt."""

import datetime
import inspect
import json
import platform
from pathlib import Path

import numpy as np
import pytest
from metal_kit import needs_shim, text

from helpers.edge.metal import (
    ArgumentsError,
    KernelFault,
    MslCompileError,
    ReceiptError,
    bridge,
    cases,
    compile_shader,
    receipt,
    shim_library,
    twins,
)

torch = pytest.importorskip("torch")
pytestmark = needs_shim


class FakeKernel:
    """`torch._C._mps_MetalKernel`: keyword-only counts and casts; what it refuses, it refuses as torch does."""

    max_threads_per_threadgroup, thread_execution_width = 1024, 32

    def __init__(self, kernel):
        self.kernel = kernel

    def __call__(self, *args, threads=None, group_size=None, arg_casts=None, error_buf_idx=None):
        for value in args:
            # `bytes` and NumPy arrays are "Unsupported argument type" in OptionalArgCaster::setValue.
            if not isinstance(value, (torch.Tensor, int, float, tuple, list)):
                raise RuntimeError("Unsupported argument type")
        values = [value.numpy() if isinstance(value, torch.Tensor) else value for value in args]
        as_declared = [retyped(value, parameter) for value, parameter in zip(values, self.kernel.text.arguments)]
        self.kernel(*as_declared, threads=threads, group_size=group_size, arg_casts=arg_casts)


def retyped(value, parameter):
    """A buffer has no type of its own in Metal: its bytes are the parameter's."""
    if not isinstance(value, np.ndarray):
        return value
    return value.reshape(-1).view(parameter.element) if parameter.element else value.tobytes()


class FakeLibrary:
    """`torch._C._mps_ShaderLibrary`: kernels as attributes, by name."""

    def __init__(self, source):
        if "refused" in source:
            raise SyntaxError("program_source:4:1: error: use of undeclared identifier 'refused'")
        self.library = shim_library(source)

    def __getattr__(self, name):
        return FakeKernel(getattr(self.library, name))

    def __dir__(self):
        return dir(self.library)


@pytest.fixture
def mac(monkeypatch):
    """A machine that looks like a Mac to `bridge`; tensors that are sent to `mps` stay where they are."""
    real = torch.Tensor.to
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "mac_ver", lambda: ("26.1", ("", "", ""), "arm64"))
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch._C, "_mps_compileShader", FakeLibrary, raising=False)
    monkeypatch.setattr(torch.mps, "synchronize", lambda: None)
    monkeypatch.setattr(
        torch.Tensor, "to", lambda self, *to, **how: self if to == ("mps",) else real(self, *to, **how)
    )


def test_the_surface_that_the_fake_stands_for_is_torchs_own():
    assert list(inspect.signature(torch.mps.compile_shader).parameters) == ["source"]
    assert list(inspect.signature(torch.mps.synchronize).parameters) == []
    if not torch.backends.mps.is_available():
        with pytest.raises(RuntimeError, match="MPS is not available"):
            torch.mps.compile_shader("")


def test_elsewhere_the_stand_in_runs_and_says_so():
    if bridge.available():
        pytest.skip("this is a Mac: compile_shader takes its GPU")
    x = np.zeros(4, np.float32)
    assert "never compiled by Apple" in compile_shader(text("x[i] = 1;")).f(x).executed and x.all()


def test_the_same_call_goes_through_torch_on_a_mac(mac):
    x, y = np.arange(100, dtype=np.float32), np.ones(100, np.float32)
    done = compile_shader(twins.msl("saxpy")).saxpy(x, y, 100, 2.0, threads=128, group_size=64)
    assert np.array_equal(y, 2 * np.arange(100, dtype=np.float32) + 1)
    assert done.executed == f"MSL by torch.mps ({torch.__version__}, macOS 26.1)"
    assert (done.threads, done.group_size, done.groups, done.duration) == ((128, 1, 1), (64, 1, 1), 2, None)


@pytest.mark.parametrize("name", twins.names())
def test_every_twin_passes_through_the_bridge(mac, name):
    for case in cases.of(name)[1:2]:
        assert case.error(case.run()) <= 1


def test_structs_casts_and_shared_arrays_pass_the_bridge(mac):
    before = "struct Pair { uint a; float b; };\n"
    parameters = "device float* x, device const float* y, constant Pair& pair, constant half& h, constant uint& n"
    x = np.arange(4, dtype=np.float32)
    pair = np.array([3], np.uint32).tobytes() + np.array([0.5], np.float32).tobytes()
    library = compile_shader(text("x[i] = y[i] + pair.a + pair.b + h + n;", parameters, before))
    library.f(x, x, pair, 1.5, 10, arg_casts={3: "fp16"})
    assert np.array_equal(x, np.arange(4) + 15)
    assert dir(library) == ["f"] and library.f.thread_execution_width == 32
    assert library.f.max_threads_per_threadgroup == 1024


def test_what_goes_wrong_on_a_mac_has_the_same_names(mac):
    with pytest.raises(MslCompileError, match=r"Apple's compiler said: .*undeclared identifier"):
        compile_shader(text("x[i] = refused;"))
    library = compile_shader(text("x[i] = 1;"))
    with pytest.raises(ArgumentsError, match="no kernel g"):
        _ = library.g
    with pytest.raises(ArgumentsError, match="float64"):
        library.f(np.zeros(4))
    with pytest.raises(KernelFault, match=r"torch\.mps said: Unsupported argument"):
        kernel = library.f
        kernel.compiled = FakeKernelThatFails()
        kernel(np.zeros(4, np.float32))


class FakeKernelThatFails:
    def __call__(self, *args, **options):
        raise RuntimeError("Unsupported argument type")


def test_the_page_says_whether_there_is_a_receipt(tmp_path):
    none = "no receipt: no Mac has run these kernels; what is shown comes from the stand-in"
    assert receipt.status(tmp_path) == receipt.status(tmp_path / "absent") == none
    assert receipt.status() == none if not receipt.read() else receipt.status().startswith("receipt: ")


def test_a_receipt_is_made_on_a_mac_only():
    if bridge.available():
        pytest.skip("this is a Mac")
    with pytest.raises(ReceiptError, match="made by an Apple GPU") as caught:
        receipt.make()
    assert "python -m helpers.edge.metal.receipt" in caught.value.mend


TODAY = datetime.date(2027, 1, 10)


def made(date="2027-01-01", name="saxpy", **changes):
    line = {"name": name, "digest": receipt.digest(name), "error": 0.5, "seconds": 1e-3} | changes
    return receipt.Receipt("Apple M4", "26.1", "2.13.0", date, 32, (receipt.KernelLine(**line),))


def test_a_receipt_is_made_and_read(mac, monkeypatch, tmp_path):
    monkeypatch.setattr(twins, "names", lambda: ("reduce_tree", "saxpy"))
    monkeypatch.setattr(receipt, "_chip", lambda: "Apple M4 Pro")
    path = receipt.make(tmp_path)
    today = datetime.date.today()
    assert path.name == f"{today.isoformat()}-apple-m4-pro.json"
    (read,) = receipt.read(tmp_path)
    assert [line.name for line in read.kernels] == ["reduce_tree", "saxpy"]
    assert all(line.error <= 1 and line.seconds > 0 and not line.problem for line in read.kernels)
    assert read.stale() == () and read.age_days() == 0
    assert receipt.status(tmp_path).startswith("receipt: Apple M4 Pro, macOS 26.1, torch")
    assert str(read.time_of("saxpy")).endswith(
        f"[recorded: Apple M4 Pro, {today}, torch {torch.__version__}, macOS 26.1]"
    )
    assert "/" not in path.read_text().replace("\\/", "")  # names no folder of that machine


def test_a_receipt_is_the_place_for_bad_news(mac, monkeypatch, tmp_path):
    monkeypatch.setattr(twins, "names", lambda: ("saxpy",))
    monkeypatch.setattr(twins, "msl", lambda name, constants=None: text("refused;"))
    receipt.make(tmp_path)
    (read,) = receipt.read(tmp_path)
    assert "undeclared identifier" in read.kernels[0].problem
    assert "failed there: saxpy" in receipt.status(tmp_path)
    with pytest.raises(ReceiptError, match="no time of saxpy"):
        read.time_of("saxpy")


def test_age_changes_and_failures_are_told(tmp_path):
    receipt.write(made("2026-01-01"), tmp_path)
    assert "(374 days old); old: make a new one; changed since:" in receipt.status(tmp_path, TODAY)
    receipt.write(made(error=3.0), tmp_path)
    status = receipt.status(tmp_path, TODAY)
    assert "2027-01-01 (9 days old); failed there: saxpy" in status  # the newest one counts
    assert "saxpy" not in status.partition("changed since")[2]
    receipt.write(made("2027-01-02", digest="0" * 16, error=float("nan")), tmp_path)
    status = receipt.status(tmp_path, TODAY)
    assert "failed there: saxpy" in status and "saxpy" in status.partition("changed since")[2]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "kernels": []}', "null"])
def test_what_is_no_receipt_is_named(tmp_path, content):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(ReceiptError, match="not a receipt") as caught:
        receipt.read(tmp_path)
    assert str(tmp_path) in caught.value.where


def test_a_date_that_is_none_is_refused(tmp_path):
    path = receipt.write(made(), tmp_path)
    held = json.loads(path.read_text()) | {"date": "yesterday"}
    path.write_text(json.dumps(held))
    with pytest.raises(ReceiptError, match="not a receipt"):
        receipt.read(tmp_path)


def test_reading_receipts_and_running_texts_needs_no_torch():
    import subprocess
    import sys

    program = (
        "import sys, numpy; from helpers.edge.metal import compile_shader, receipt, twins; receipt.status();"
        "x = numpy.ones(3, numpy.float32); compile_shader(twins.msl('saxpy')).saxpy(x, x, 3, 1.0);"
        "sys.exit('torch' in sys.modules)"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", program], cwd=root, check=False).returncode == 0
