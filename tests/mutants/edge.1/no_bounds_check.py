"""symptom: out of bounds

The idle invocations of the last workgroup write behind the end.
"""


def answer():
    return """#version 450
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) buffer Y { float y[]; };
layout(push_constant) uniform Arguments { uint n; float alpha; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    y[i] = alpha * x[i] + y[i];
}
"""
