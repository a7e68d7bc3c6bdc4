import os
import struct
import subprocess
import sys

import numpy as np
import pytest

from helpers.edge import shaders, spirv
from helpers.edge.vulkan import BufferError, KernelError, NoVulkan, devices, open_device

SAXPY = shaders.spirv("saxpy")


def run_python(program, **environment):
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout.strip(), done.stderr


@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000])
def test_saxpy_is_within_two_roundings_of_float64(device, n):
    draw = np.random.default_rng(n)
    x, y = draw.standard_normal((2, n)).astype(np.float32)
    buffers = [device.upload(x), device.upload(y)]
    device.kernel(SAXPY).run((-(-n // 64),), buffers, struct.pack("<If", n, 1.5))
    truth = 1.5 * x.astype(np.float64) + y
    assert np.all(np.abs(buffers[1].array() - truth) <= 2.01 * 2**-24 * (np.abs(1.5 * x) + np.abs(y)))


def test_every_device_says_what_it_is():
    for info in devices():
        assert info.name and info.driver and info.subgroup_size >= 1
        assert info.limits.invocations >= 128 and info.limits.push_constant_bytes >= 128  # Vulkan's minimum


def test_a_tensor_is_the_buffer(device):
    torch = pytest.importorskip("torch")
    before = device.copied_bytes
    x, y = device.buffer(100), device.buffer(100)
    tensor = y.tensor()
    assert tensor.data_ptr() == y.pointer == y.array().ctypes.data
    x.tensor().fill_(3.0)
    tensor.copy_(torch.arange(100.0))
    device.kernel(SAXPY).run((2,), [x, y], struct.pack("<If", 100, 2.0))
    assert torch.equal(tensor, torch.arange(100.0) + 6)
    y.array()[:] = 1
    assert bool((tensor == 1).all())
    assert device.copied_bytes == before


def test_new_buffers_are_zero_and_uploads_are_counted(device):
    assert not device.buffer((3, 5), np.int32).array().any()
    before = device.copied_bytes
    device.upload(np.ones(10, np.float64))
    assert device.copied_bytes - before == 80


def test_a_buffer_is_not_freed_under_a_view(device):
    buffer = device.buffer(10)
    view = buffer.array()[2:4]
    with pytest.raises(BufferError, match="1 arrays or tensors still look"):
        buffer.free()
    assert view.sum() == 0
    del view
    buffer.free()
    buffer.free()
    with pytest.raises(BufferError, match="was freed"):
        buffer.array()


@pytest.mark.parametrize("shape", [0, (3, 0), 10**12])
def test_a_buffer_of_an_impossible_size_is_refused(device, shape):
    with pytest.raises(BufferError, match="bytes"):
        device.buffer(shape)


def test_arguments_that_do_not_fit_are_refused_before_anything_runs(device):
    x, y, freed = device.buffer(64), device.buffer(64), device.buffer(64)
    freed.free()
    kernel, push = device.kernel(SAXPY), struct.pack("<If", 64, 1.0)
    wrong = [
        ((1,), [x], push, "1 buffers for 2 bindings"),
        ((1,), [x, y, y], push, "3 buffers for 2 bindings"),
        ((1,), [x, y], push[:4], "4 bytes of push constants"),
        ((0,), [x, y], push, "workgroups"),
        ((2**31,), [x, y], push, "workgroups"),
        ((1, 1, 1, 1), [x, y], push, "workgroups"),
        ((1,), [x, freed], push, "was freed"),
    ]
    for groups, buffers, constants, message in wrong:
        with pytest.raises(KernelError, match=message):
            kernel.run(groups, buffers, constants)
    assert not y.array().any()


def test_a_shader_that_exceeds_the_device_is_refused(device):
    with pytest.raises(KernelError, match="no specialization constant 7"):
        device.kernel(SAXPY, {7: 1})
    with pytest.raises(KernelError, match="invocations"):
        device.kernel(shaders.spirv("matmul_tiled"), {0: 4096})
    large = (
        "#version 450\nlayout(push_constant) uniform P { float f[20000]; };\nvoid main() { if (f[0] > 0) return; }"
    )
    with pytest.raises(KernelError, match="bytes of push constants"):
        device.kernel(spirv.compile_glsl(large))


def test_timestamps_count_the_kernel_alone(device):
    buffers = [device.buffer(10**6), device.buffer(10**6)]
    done = device.kernel(SAXPY).run((-(-(10**6) // 64),), buffers, struct.pack("<If", 10**6, 1.0))
    if device.timestamp_bits:
        assert done.duration.unit == "s" and done.duration.value > 0
    else:
        assert done.duration is None


def test_the_validation_layer_speaks_to_the_one_who_erred(session_device):
    if not session_device.info.validation:
        pytest.skip("needs the Khronos layer: apt-get install vulkan-validationlayers")
    session_device.take_messages()
    doubles = shaders.glsl("saxpy").replace("alpha * x[i]", "float(double(alpha) * x[i])")
    session_device.kernel(spirv.compile_glsl(doubles))
    messages = session_device.take_messages()
    assert any("Float64" in message.text for message in messages)
    assert session_device.take_messages() == ()


def test_another_device_is_asked_for_by_name_and_kind():
    if not devices():
        pytest.skip("needs a Vulkan device")
    with pytest.raises(NoVulkan, match="no Vulkan device 'no such device'; there:"):
        open_device("no such device")
    with open_device(devices()[0].name, devices()[0].kind) as device:
        assert device.info.name == devices()[0].name


def test_without_a_loader_nothing_raises_and_the_mend_is_named():
    program = """
from helpers.edge.vulkan import devices, open_device, why_none, NoVulkan
print(devices(), 'libvulkan1' in why_none())
try: open_device()
except NoVulkan as error: print('NoVulkan')
"""
    code, out, _ = run_python(program, COURSE_VULKAN_LIBRARY="absent.so")
    assert (code, out) == (0, "() True\nNoVulkan")


def test_without_a_driver_nothing_raises_and_the_mend_is_named(tmp_path):
    program = (
        "from helpers.edge.vulkan import devices, why_none; print(devices(), 'mesa-vulkan-drivers' in why_none())"
    )
    nothing = str(tmp_path / "none.json")
    code, out, _ = run_python(program, VK_ICD_FILENAMES=nothing, VK_DRIVER_FILES=nothing)
    assert (code, out) == (0, "() True")


ALIVE = """
import struct
from helpers.edge import shaders, spirv
from helpers.edge.vulkan import open_device
device = open_device({options})
buffers = [device.buffer(100), device.buffer(100)]
kernel = device.kernel(spirv.compile_glsl(shaders.glsl("saxpy"){change}))
kernel.run(({groups},), buffers, struct.pack("<If", 100, 1.0))
print(len(device.take_messages()))
"""


def needs_vulkan():
    if not devices():
        pytest.skip("needs a Vulkan device")


def test_a_program_that_forgets_to_close_ends_well():
    needs_vulkan()
    code, out, error = run_python(ALIVE.format(options="", change="", groups=2))
    assert (code, out) == (0, "0"), error


def test_writes_far_outside_of_a_buffer_do_not_kill_the_process():
    needs_vulkan()
    change = '.replace("if (i < n) ", "").replace("gl_GlobalInvocationID.x", "gl_GlobalInvocationID.x * 1000000u")'
    for _ in range(3):
        code, _, error = run_python(ALIVE.format(options="", change=change, groups=100))
        assert code == 0, error


@pytest.mark.parametrize(("bits", "subgroup"), [("128", 4), ("256", 8)])
def test_the_tiled_matmul_needs_no_certain_subgroup_size(bits, subgroup):
    """lavapipe's subgroup follows the width of the vectors that it is told to use."""
    if not any("llvmpipe" in info.name for info in devices()):
        pytest.skip("needs lavapipe: apt-get install mesa-vulkan-drivers")
    program = """
import numpy as np
from helpers.edge.matmul import error_ratio, multiply
from helpers.edge.vulkan import open_device
a, b = (np.random.default_rng(0).standard_normal(s).astype('f') for s in ((45, 37), (37, 50)))
with open_device("llvmpipe") as device:
    print(device.info.subgroup_size, error_ratio(a, b, multiply(device, a, b)[0]) <= 1, device.take_messages())
"""
    code, out, error = run_python(program, LP_NATIVE_VECTOR_WIDTH=bits, MESA_SHADER_CACHE_DISABLE="true")
    assert (code, out) == (0, f"{subgroup} True ()"), error
