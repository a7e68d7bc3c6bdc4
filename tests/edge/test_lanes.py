"""Kernels that take 32 lanes for granted: the model, and each width of lavapipe."""

import math

import pytest

from helpers.edge import shaders, spirv
from helpers.edge.lanes import KERNELS, LANES, LanesError, assume, model_sum, observe, speakers_figure, why_not
from helpers.edge.vulkan import NoVulkan


@pytest.mark.parametrize("lanes", LANES)
def test_each_width(lanes):
    if reason := why_not(lanes):
        pytest.skip(reason)
    right, wrong = observe(lanes), observe(lanes, assumed=32)
    assert right.lanes == wrong.lanes == lanes
    assert max(right.errors.values()) <= 1 < min(wrong.errors.values())
    assert (right.ones, right.total) == (128, 1) and math.isclose(right.norm, 1, rel_tol=1e-5)
    assert wrong.ones == model_sum([1] * 128, lanes, 32) == 4 * lanes
    assert wrong.total == 32 / lanes and math.isclose(wrong.norm, math.sqrt(32 / lanes), rel_tol=1e-5)


def test_the_model_counts_what_is_heard():
    values = [*range(16)]
    assert model_sum(values, 4, 4) == model_sum(values, 8, 8) == model_sum(values, 8, 4) / 2 == sum(values)
    assert model_sum(values, 4, 8) == 0 + 1 + 2 + 3 + 8 + 9 + 10 + 11


@pytest.mark.parametrize("name", KERNELS.values())
def test_a_kernel_that_assumes_compiles(name):
    text = assume(shaders.glsl(name))
    assert "32" in text and "gl_SubgroupID" not in text
    spirv.validate(spirv.compile_cached(text))


def test_what_knows_no_subgroups_is_named():
    with pytest.raises(LanesError, match="asks nothing"):
        assume(shaders.glsl("saxpy"))


def test_a_machine_that_has_no_such_width_says_why(monkeypatch):
    monkeypatch.setattr("helpers.edge.lanes.devices", lambda: ())
    monkeypatch.setattr("helpers.edge.lanes.why_none", lambda: "no loader")
    with pytest.raises(NoVulkan, match="no subgroups of 8"):
        observe(8)


def test_the_figure_has_a_row_a_size():
    axes = speakers_figure((4, 16)).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["4 lanes", "16 lanes"]
    assert sum(patch.get_hatch() is None for patch in axes.patches) == 8  # four are heard in each row
