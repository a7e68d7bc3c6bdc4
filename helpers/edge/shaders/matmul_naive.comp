#version 450
// C (M, N) = A (M, K) · B (K, N), row-major fp32. Each invocation computes one element of C, and
// reads a row of A and a column of B for it: two loads for each multiply-add.
layout(local_size_x = 16, local_size_y = 16, local_size_x_id = 0, local_size_y_id = 0) in;
layout(constant_id = 0) const uint TILE = 16;

layout(set = 0, binding = 0) readonly buffer A { float a[]; };
layout(set = 0, binding = 1) readonly buffer B { float b[]; };
layout(set = 0, binding = 2) writeonly buffer C { float c[]; };
layout(push_constant) uniform Sizes { uint m; uint n; uint k; };

void main() {
    uint row = gl_GlobalInvocationID.y, column = gl_GlobalInvocationID.x;
    if (row >= m || column >= n) return;
    float sum = 0.0;
    for (uint i = 0; i < k; i++) sum += a[row * k + i] * b[i * n + column];
    c[row * n + column] = sum;
}
