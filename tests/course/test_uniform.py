"""Barriers that not all invocations reach: what the reading of a module calls parted, and what not."""

import pytest

from helpers.course.exercises.edge.uniform import barrier_for_some
from helpers.edge import spirv

TEXT = """#version 450
layout(local_size_x = 8, local_size_y = 2) in;
layout(set = 0, binding = 0) buffer Out_ {{ float out_[]; }};
layout(push_constant) uniform Sizes {{ uint k; }};
shared float tile[16];
void wait() {{ barrier(); }}
uint twice(uint x) {{ return 2 * x; }}
void main() {{
    uint me = gl_LocalInvocationIndex, group = gl_WorkGroupID.x;
    tile[me] = float(me);
    {body}
    out_[gl_GlobalInvocationID.x] = tile[15 - me];
}}
"""
ALL = {
    "alone": "barrier();",
    "a loop that all leave together": "for (uint i = 0; i < k; i += 8) { barrier(); tile[me] += 1.0; barrier(); }",
    "behind a loop that they leave apart": "for (uint i = me; i < k; i += 16) tile[me] += 1.0; barrier();",
    "a condition that is the same for all": "if (k > 3 && group < 2) barrier();",
    "a called function": "for (uint i = 0; i < k; i++) wait();",
    "what the function is given is the same for all": "if (twice(k) > 4) barrier();",
    "a condition on their own beside it": "if (me < 3 && k > 2) tile[me] = 1.0; barrier();",
}
SOME = {
    "the first half": "if (me < 8) barrier();",
    "through a variable": "uint left = 3 * group; left += me; if (left < k) { tile[me] = 2.0; barrier(); }",
    "by the global id": "if (gl_GlobalInvocationID.y < k) barrier();",
    "by half of a condition": "if (k > 2 && me < 3) barrier();",
    "a loop of its own length": "for (uint i = me; i < k; i += 16) barrier();",
    "left by a break": "for (uint i = 0; i < k; i++) { if (me + i > 20) break; barrier(); }",
    "in a called function": "if (gl_LocalInvocationID.x == 0) wait();",
    "through a function": "if (twice(me) < 9) barrier();",
    "by a switch": "switch (me) { case 0: barrier(); break; default: tile[me] = 0.0; }",
    "by what an own element holds": "if (tile[me] > 3.0) barrier();",
}


@pytest.mark.parametrize("body", ALL.values(), ids=ALL)
def test_a_barrier_that_all_reach_is_let_pass(body):
    assert not barrier_for_some(list(spirv.instructions(spirv.compile_glsl(TEXT.format(body=body)))))


@pytest.mark.parametrize("body", SOME.values(), ids=SOME)
def test_a_barrier_that_some_may_miss_is_found(body):
    assert barrier_for_some(list(spirv.instructions(spirv.compile_glsl(TEXT.format(body=body)))))
