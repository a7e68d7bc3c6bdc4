import struct

import numpy as np
import pytest

from helpers.edge import shaders, spirv
from helpers.edge.vulkan import Check, VulkanError, layers, open_device
from helpers.edge.vulkan.layers import Layer, why_not

SAXPY = shaders.spirv("saxpy")
PUSH = struct.pack("<If", 64, 1.0)
BEHIND = """#version 450
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) buffer Y { float y[]; };
void main() { y[gl_GlobalInvocationID.x * 1000u + 60u] = 1.0; }
"""
PRINTS = """#version 450
#extension GL_EXT_debug_printf : enable
layout(local_size_x = 4) in;
layout(set = 0, binding = 0) buffer Y { float y[]; };
void main() { y[gl_LocalInvocationIndex] = 1.0; debugPrintfEXT("lane %u", gl_LocalInvocationIndex); }
"""


def opened(driver, *checks):
    device = open_device(driver=driver, checks=checks)
    if any(device.checks.values()):
        reason = next(filter(None, device.checks.values()))
        device.close()
        pytest.skip(reason)
    return device


@pytest.fixture(params=["newest", "installed"])
def build(request, monkeypatch):
    """The builds of the layer that this machine has: the newest, and the one of the system's own package."""
    if request.param == "installed":
        monkeypatch.setattr(layers, "BUNDLED", ())


def two_steps(device, barriers):
    x, y = device.buffer(64), device.buffer(64)
    with device.record(barriers=barriers) as recording:
        recording.dispatch(device.kernel(SAXPY), (1,), [x, y], PUSH)
        recording.dispatch(device.kernel(SAXPY), (1,), [y, x], PUSH)
    recording.submit()
    return recording


def test_a_missing_barrier_is_a_hazard_and_a_barrier_ends_it(any_driver, build):
    with opened(any_driver, "sync") as device:
        assert two_steps(device, barriers=True).hazards == ()
        assert device.take_messages() == ()
        without = two_steps(device, barriers=False)
        messages = device.take_messages()
        assert len(without.hazards) == 1 and without.messages == messages
    assert {message.rule for message in messages} >= {"SYNC-HAZARD-READ-AFTER-WRITE"}
    assert all(message.severity == "error" and message.call for message in messages)


def test_an_access_behind_the_buffer_is_told_and_kills_nothing(any_driver, build):
    with opened(any_driver, "bounds") as device:
        y = device.buffer(64)
        run = device.kernel(spirv.compile_glsl(BEHIND)).run((100,), [y])
        assert y.array().sum() == 1 and y.array()[60] == 1
        assert run.messages == device.take_messages()
        assert "out of bounds" in run.messages[0].text and run.messages[0].call == "running a recording"
        fine = device.kernel(SAXPY).run((1,), [device.buffer(64), y], PUSH)
        assert fine.messages == () == device.take_messages()


def test_a_shader_prints_to_the_call_that_ran_it(any_driver, build):
    with opened(any_driver, "printf") as device:
        kernel, y = device.kernel(spirv.compile_glsl(PRINTS)), device.buffer(4)
        for _ in range(2):
            lines = kernel.run((1,), [y]).messages
            assert sorted(line.text for line in lines) == [f"lane {i}" for i in range(4)]
            assert {line.severity for line in lines} == {"printf"}
        assert len(device.take_messages()) == 8
        assert kernel.run((1,), [y]).groups == (1, 1, 1)
        device.take_messages()


def test_a_message_names_the_call_and_goes_to_it_alone(any_device):
    x, y = any_device.buffer(64), any_device.buffer(64)
    kernel = any_device.kernel(SAXPY)
    assert kernel.run((1,), [x, y], PUSH).messages == ()
    with any_device.instance.during("making a mistake"):
        handle = np.zeros(1, np.uint64)
        any_device.functions.vkDestroyFence(any_device.handle, 12345, None)
        assert not handle.any()
    messages = any_device.take_messages()
    if not any_device.info.validation:
        pytest.skip("needs the Khronos layer: apt-get install vulkan-validationlayers")
    assert messages[0].call == "making a mistake" and "VUID-vkDestroyFence" in messages[0].rule
    assert kernel.run((1,), [x, y], PUSH).messages == ()


def test_the_text_starts_with_the_matter(any_driver, build):
    with open_device(driver=any_driver) as device:
        if not device.info.validation:
            pytest.skip("needs the Khronos layer: apt-get install vulkan-validationlayers")
        device.functions.vkDestroyFence(device.handle, 12345, None)
        text = device.take_messages()[0].text
    assert "Fence" in text[:60] and "Validation Error" not in text and "MessageID" not in text


def test_what_a_build_cannot_do_has_a_reason():
    old, new = Layer((1, 3, 239)), Layer((1, 4, 309))
    both = frozenset({Check.PRINTF, Check.BOUNDS})
    assert "1.3.239 cannot print and check bounds at once" in why_not(Check.PRINTF, old, both)
    assert why_not(Check.BOUNDS, old, both) == why_not(Check.PRINTF, new, both) == ""
    assert why_not(Check.PRINTF, old, frozenset({Check.PRINTF})) == ""
    assert "vulkan-validationlayers" in why_not(Check.SYNC, None, frozenset({Check.SYNC}))


def test_without_the_layer_the_reason_is_there_and_nothing_breaks(any_driver, monkeypatch, tmp_path):
    monkeypatch.setenv("VK_LAYER_PATH", str(tmp_path))
    with open_device(driver=any_driver, checks=("sync", "bounds")) as device:
        assert not device.info.validation and device.instance.layer is None
        assert all("vulkan-validationlayers" in reason for reason in device.checks.values())
        two_steps(device, barriers=True)


def test_an_unknown_check_is_named(any_driver):
    with pytest.raises(VulkanError, match="no check: 'spelling'") as caught:
        open_device(driver=any_driver, checks=("spelling",))
    assert "sync, bounds, printf" in caught.value.mend


def test_for_bounds_a_build_that_speaks_on_robust_devices_is_taken(monkeypatch):
    builds = {"installed": Layer((1, 3, 239)), "bundled": Layer((1, 4, 364), "somewhere")}
    monkeypatch.setattr(layers, "_installed", lambda functions: builds["installed"])
    monkeypatch.setattr(layers, "_bundled", lambda folder: builds["bundled"])
    monkeypatch.setattr(layers, "_by_path", lambda layer: layer)
    for name in layers.OVERRIDES:
        monkeypatch.delenv(name, raising=False)
    assert layers.choose_layer(None, frozenset()) == builds["bundled"]
    assert layers.choose_layer(None, frozenset({Check.BOUNDS})) == builds["installed"]
    builds["installed"] = None
    assert layers.choose_layer(None, frozenset({Check.BOUNDS})) == builds["bundled"]
    monkeypatch.setenv("VK_LAYER_PATH", "/elsewhere")
    assert layers.choose_layer(None, frozenset()) is None
