#version 450
// y = alpha * x + y over n fp32 elements; the last workgroup may be only partly used.
layout(local_size_x = 64, local_size_x_id = 0) in;

layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) buffer Y { float y[]; };
layout(push_constant) uniform Arguments { uint n; float alpha; };

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < n) y[i] = alpha * x[i] + y[i];
}
