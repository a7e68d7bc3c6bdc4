"""symptom: the tail is wrong

The partly used workgroup is left out.
"""


def answer():
    return """#version 450
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) buffer Y { float y[]; };
layout(push_constant) uniform Arguments { uint n; float alpha; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < n - n % 64) y[i] = alpha * x[i] + y[i];
}
"""
