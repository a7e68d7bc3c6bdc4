"""symptom: the input was changed

x and y are declared the other way round.
"""


def answer():
    return """#version 450
layout(local_size_x = 64) in;
layout(set = 0, binding = 1) readonly buffer X { float x[]; };
layout(set = 0, binding = 0) buffer Y { float y[]; };
layout(push_constant) uniform Arguments { uint n; float alpha; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < n) y[i] = alpha * x[i] + y[i];
}
"""
