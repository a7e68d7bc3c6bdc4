"""The matrix lab's oracles: the choice against the course's own, and what is read from a module."""

from dataclasses import replace
from pathlib import Path

import pytest

from helpers.course.checks import State, find_exercise, judge
from helpers.course.exercises.edge import cooperative_gemm, gemm_trial
from helpers.course.exercises.edge.gemm_trial import why_not_here
from helpers.course.exercises.edge.matrix_choice import drawn_devices, fixed_devices, invent, reuse
from helpers.course.exercises.edge.matrix_module import examine_module, matrices
from helpers.edge import cooperative, spirv
from helpers.edge.vulkan import Driver, MatrixShape, why_none

SHAPE = MatrixShape(16, 8, 32, "f16", "f32")
TEXT = """#version 450
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#define MATRIX(T, R, C, U) coopmat<T, gl_ScopeSubgroup, R, C, U>
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) buffer C_ { float c[]; };
shared float16_t tile[512];
shared float out_tile[128];
void wait() { WAIT; }
void main() {
    MATRIX(float16_t, 16, 32, gl_MatrixUseA) a;
    MATRIX(float16_t, 32, 8, gl_MatrixUseB) b;
    MATRIX(float, 16, 8, gl_MatrixUseAccumulator) sums = MATRIX(float, 16, 8, gl_MatrixUseAccumulator)(0.0);
    coopMatLoad(a, tile, 0, 32, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(b, tile, 0, 8, gl_CooperativeMatrixLayoutRowMajor);
    sums = coopMatMulAdd(a, b, sums);
    coopMatStore(sums, out_tile, 0, 8, gl_CooperativeMatrixLayoutRowMajor);
    wait();
    c[gl_LocalInvocationID.x] = out_tile[gl_LocalInvocationID.x];
}
"""


@pytest.mark.parametrize("seed", range(5))
def test_the_invented_devices_are_judged_as_the_course_chooses(seed):
    for device in (*fixed_devices(), *drawn_devices(seed)):
        chosen = cooperative.choose(device.info, "f16")
        assert bool(chosen.reason) == (not device.fitting), device.name
        if device.fitting:
            assert reuse(chosen.shape) == max(map(reuse, device.fitting))


def test_an_invented_device_can_do_all_but_what_it_lacks():
    assert invent(SHAPE, lacks="float16").why_not("float16") == "the driver reports no float16"
    assert invent(SHAPE).can("cooperative_matrix") and not invent().can("cooperative_matrix")


@pytest.fixture(scope="module")
def module():
    return spirv.compile_glsl(TEXT.replace("WAIT", "barrier()"))


def test_the_matrices_of_a_module_are_read(module):
    wanted = {("f16", 3, (16, 32), 0), ("f16", 3, (32, 8), 1), ("f32", 3, (16, 8), 2)}
    assert set(matrices(list(spirv.instructions(module)))) == wanted


def test_a_barrier_in_a_function_counts_and_none_is_missed(module):
    assert examine_module(module, SHAPE, 64, "") is None
    without = spirv.compile_glsl(TEXT.replace("WAIT", "return"))
    assert "no barrier" in examine_module(without, SHAPE, 64, "it").saw


def test_the_reason_says_how_to_get_a_driver_in_one_line(monkeypatch):
    absent = Driver("lavapipe-newer", None, "no Mesa with cooperative matrix: run tools/newer_mesa.sh (Debian only)")
    monkeypatch.setattr(gemm_trial, "devices", lambda: ())
    monkeypatch.setattr(gemm_trial, "driver", lambda name: absent)
    monkeypatch.setattr(gemm_trial, "why_none", lambda: "")
    reason = why_not_here()
    assert "your kernel without matrices is right" in reason and "\n" not in reason
    assert reason.endswith(absent.why_not)


@pytest.mark.parametrize(("reached", "symptom"), [(0, "aborts"), (1, "aborts"), (2, None)])
def test_a_child_that_dies_counts_where_the_shape_is_listed(monkeypatch, reached, symptom):
    def die(place, folder):
        for number in range(reached):
            Path(folder, f"reached-{number}").touch()
        return "ended with -11: it said nothing"

    monkeypatch.setattr(gemm_trial, "_end_of_child", die)
    one = gemm_trial.GemmKernel("one", b"", (8, 8), 8)
    kernels = [one, replace(one, listed=False)]
    place = gemm_trial.Place("a device", Driver("none", None, "absent"), SHAPE, 8)
    finding = gemm_trial.run_trial(kernels, place, 0)
    assert (finding and str(finding.symptom)) == symptom


PLAIN = """layout(local_size_x = 8, local_size_y = 8) in;
void main() { uint row = gl_GlobalInvocationID.y, column = gl_GlobalInvocationID.x; float sum = 0.0;
    if (row < m && column < n) { for (uint i = FIRST; i < k; i++) sum += load_a(row, i) * load_b(i, column);
                                 store_c(row, column, sum); } }"""


@pytest.mark.skipif(bool(why_none()), reason=why_none() or "there is Vulkan")
@pytest.mark.parametrize(("first", "state"), [("0", State.SKIPPED), ("1", State.NOT_YET)])
def test_where_nothing_has_matrices_the_kernel_without_is_run(monkeypatch, first, state):
    monkeypatch.setattr(cooperative_gemm, "places", lambda: iter(()))
    monkeypatch.setattr(cooperative_gemm, "examine_module", lambda *read: None)
    verdict = judge(find_exercise("edge.7"), lambda shape, lanes: PLAIN.replace("FIRST", first), 0)
    assert verdict.state is state, str(verdict)
