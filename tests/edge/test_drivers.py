import json
import os
import shutil
import struct
import subprocess

import numpy as np
import pytest

from helpers.edge import shaders
from helpers.edge.matmul import error_ratio, multiply
from helpers.edge.vulkan import Driver, NoVulkan, driver, drivers, open_device
from helpers.edge.vulkan.drivers import CHOSEN, MESA_SCRIPT, NEWER_MESA, PROJECT, newer_lavapipe

SAXPY = shaders.spirv("saxpy")
SUBGROUPS = """
import numpy as np
from helpers.edge.matmul import error_ratio, multiply
from helpers.edge.vulkan import open_device
a, b = (np.random.default_rng(0).standard_normal(s).astype("f") for s in ((45, 37), (37, 50)))
with open_device() as device:
    right = error_ratio(a, b, multiply(device, a, b)[0]) <= 1
    print(device.subgroups.advertised, device.subgroups.honest, right, device.take_messages())
"""
ENDS = """
import struct
from helpers.edge import shaders
from helpers.edge.vulkan import open_device
def work():
    device = open_device({options})
    buffers = [device.buffer(64), device.buffer(64)]
    with device.record() as recording:
        recording.dispatch(device.kernel(shaders.spirv("saxpy")), (1,), buffers, struct.pack("<If", 64, 1.0))
    recording.submit()
    return device, buffers[1].array(), recording
{ending}
"""
ENDINGS = {
    "everything lives": "kept = work()",
    "in a cycle": "kept = [work()]; kept.append(kept)",
    "dropped without closing": "work()",
    "an exception": "kept = work(); raise SystemExit(0)",
    "closed under an array": "device, array, *rest = work(); device.close(); assert array.sum() == 0",
}
ENDLESS = """
import time
from helpers.edge import spirv
from helpers.edge.vulkan import DeviceLost, open_device
device = open_device()
device.deadline_s = 0.2
buffer = device.buffer(4, "uint32")
source = "#version 450\\nlayout(set = 0, binding = 0) buffer Y { uint y[]; };"
source += "void main() { while (atomicAdd(y[0], 0u) != 1u) y[1] += 1; }"
kernel = device.kernel(spirv.compile_glsl(source))
start = time.monotonic()
try:
    kernel.run((1,), [buffer])
    print("ended")
except DeviceLost as error:
    print("lost", "more than 0.2 s" in str(error))
device.close()
print(time.monotonic() - start < 20)
"""


def test_each_driver_is_here_or_says_what_to_install():
    found = drivers()
    names = [each.name for each in found]
    assert {"lavapipe", "swiftshader", "lavapipe-newer"} <= set(names)
    for each in found:
        assert bool(each.why_not) or json.loads(each.manifest.read_text())["ICD"]["library_path"]
        assert set(each.environment) >= set(CHOSEN) or each.manifest is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "there is no"),
        ("{", "not a driver's manifest"),
        ('{"ICD": {}}', "not a driver's manifest"),
        ("[]", "not a driver's manifest"),
        ('{"ICD": {"library_path": "./gone.so"}}', "names ./gone.so, which is not there"),
    ],
)
def test_a_manifest_that_cannot_be_used_says_why(tmp_path, monkeypatch, text, reason):
    path = tmp_path / "odd_icd.json"
    if text is not None:
        path.write_text(text)
    monkeypatch.setenv("VK_DRIVER_FILES", str(path))
    odd = driver("odd")
    assert reason in odd.why_not and not odd.in_process
    for use in (lambda: open_device(driver=odd), lambda: odd.run("print(1)")):
        with pytest.raises(NoVulkan, match="the driver odd cannot be loaded") as caught:
            use()
        assert reason in caught.value.mend


def test_an_unknown_driver_is_named():
    assert "no driver 'mosquito' here; there: " in driver("mosquito").why_not


def test_a_driver_without_a_library_is_no_device(tmp_path):
    path = tmp_path / "empty_icd.json"
    path.write_text('{"file_format_version": "1.0.0", "ICD": {"library_path": "gone.so", "api_version": "1.3.0"}}')
    with pytest.raises(NoVulkan):
        open_device(driver=Driver("empty", path))


@pytest.mark.parametrize("n", [1, 63, 65, 1000])
def test_saxpy_is_within_two_roundings_on_every_driver(any_device, n):
    x, y = np.random.default_rng(n).standard_normal((2, n)).astype(np.float32)
    buffers = [any_device.upload(x), any_device.upload(y)]
    any_device.kernel(SAXPY).run((-(-n // 64),), buffers, struct.pack("<If", n, 1.5))
    truth = 1.5 * x.astype(np.float64) + y
    assert np.all(np.abs(buffers[1].array() - truth) <= 2.01 * 2**-24 * (np.abs(1.5 * x) + np.abs(y)))


@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (45, 37, 50), (17, 1, 33)])
def test_the_tiled_matmul_is_within_its_bound_on_every_driver(any_device, m, k, n):
    a, b = (np.random.default_rng(0).standard_normal(shape, np.float32) for shape in ((m, k), (k, n)))
    assert error_ratio(a, b, multiply(any_device, a, b, 8)[0]) <= 1


@pytest.mark.parametrize(("bits", "size"), [("128", 4), ("256", 8), ("512", 16)])
def test_lavapipe_with_subgroups_of_each_size(bits, size):
    """Its subgroup follows the width of the vectors that it is told to use."""
    lavapipe = driver("lavapipe")
    if lavapipe.why_not:
        pytest.skip(lavapipe.why_not)
    done = lavapipe.run(SUBGROUPS, LP_NATIVE_VECTOR_WIDTH=bits, MESA_SHADER_CACHE_DISABLE="true")
    assert (done.returncode, done.stdout.strip()) == (0, f"{size} True True ()"), done.stderr


@pytest.mark.parametrize(
    ("ending", "options"), [*((ending, "") for ending in ENDINGS), ("everything lives", "validation=False")]
)
def test_a_program_ends_well_however_it_leaves_its_device(any_driver, ending, options):
    done = any_driver.run(ENDS.format(options=options, ending=ENDINGS[ending]))
    assert done.returncode == 0, done.stderr
    assert "terminate" not in done.stderr and "Traceback" not in done.stderr


def test_a_shader_that_never_ends_costs_a_device_and_not_the_program(any_driver):
    """lavapipe ends such loops itself; SwiftShader does not."""
    done = any_driver.run(ENDLESS, seconds=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] in ("ended", "lost True") and done.stdout.strip().endswith("True")


def test_newer_lavapipe_lists_its_matrix_shapes(newer_mesa):
    done = newer_mesa.run(
        """
from helpers.edge.vulkan import open_device
with open_device(needs=("cooperative_matrix",)) as device:
    print(*sorted(map(str, device.info.cooperative_matrix)), sep="; ")
    print(device.subgroups.honest, device.take_messages())
"""
    )
    assert done.returncode == 0, done.stderr
    shapes, quiet = done.stdout.strip().splitlines()
    assert "8×8×8 f16→f32" in shapes and "8×8×8 s8→s32" in shapes
    assert quiet == "True ()"


def test_newer_lavapipe_is_not_loaded_into_this_process(newer_mesa):
    assert not newer_mesa.in_process
    with pytest.raises(NoVulkan, match="cannot be loaded") as caught:
        open_device(driver=newer_mesa)
    assert "driver.run(program)" in caught.value.mend


def test_the_system_is_left_as_it_was(newer_mesa):
    """The private copy lies in a folder that git does not see, and nothing of it is installed."""
    assert (NEWER_MESA / ".gitignore").read_text().strip() == "*"
    loaded = driver("lavapipe")
    assert loaded.why_not or NEWER_MESA not in loaded.manifest.parents


def test_without_debians_tools_the_reason_takes_one_line(tmp_path):
    bash = shutil.which("bash")
    for tool in ("dirname", "realpath", "uname"):
        os.symlink(shutil.which(tool), tmp_path / tool)
    done = subprocess.run(
        [bash, PROJECT / MESA_SCRIPT, tmp_path / "mesa"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert "no Mesa with cooperative matrix: there is no apt-get" in done.stderr
    assert MESA_SCRIPT in newer_lavapipe(tmp_path / "mesa").why_not
