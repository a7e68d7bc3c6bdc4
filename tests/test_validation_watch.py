"""The watch over the validation layer can fail a run in which every test passed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.edge.vulkan import devices, why_none

CONFTEST = """
from validation_watch import ValidationWatch

def pytest_configure(config):
    config.pluginmanager.register(ValidationWatch())
"""
TESTS = """
import struct
import pytest
from helpers.edge import shaders
from helpers.edge.vulkan import open_device

def err(device):
    device.functions.vkDestroyFence(device.handle, 12345, None)

@pytest.fixture(scope="session")
def shared():
    with open_device() as device:
        yield device

def test_silent(shared):
    buffers = [shared.buffer(64), shared.buffer(64)]
    kernel = shared.kernel(shaders.spirv("saxpy"))
    with shared.record() as recording:
        for _ in range(3):
            recording.dispatch(kernel, (1,), buffers, struct.pack("<If", 64, 1.0))
        recording.fill(buffers[0])
    recording.submit()
    recording.submit()

def test_takes(shared):
    err(shared)
    assert shared.take_messages()

def test_leaves_on_a_shared_device(shared):
    err(shared)

def test_leaves_on_a_closed_device():
    with open_device() as device:
        err(device)

def test_forgets_to_close():
    open_device().instance.keep = device = open_device()
    err(device)
"""


def test_each_message_that_is_left_fails_the_run_and_names_its_test(tmp_path):
    if not devices():
        pytest.skip(why_none())
    if not devices()[0].validation:
        pytest.skip("needs the Khronos layer: apt-get install vulkan-validationlayers")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_them.py").write_text(TESTS)
    here = Path(__file__).parent
    surroundings = {
        "PYTHONPATH": os.pathsep.join(map(str, (here, here.parent))),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | surroundings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "5 passed" in done.stdout, done.stdout
    assert re.search(r"^validation: 4 devices, 6 dispatches, [1-9]\d* unexpected messages", done.stdout, re.MULTILINE)
    blamed = re.findall(r"^test_them\.py::(\w+) \(call\): error VUID-vkDestroyFence", done.stdout, re.MULTILINE)
    assert blamed == [
        "test_leaves_on_a_shared_device",
        "test_leaves_on_a_closed_device",
        "test_forgets_to_close",
    ]
