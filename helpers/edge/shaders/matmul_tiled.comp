#version 450
// C (M, N) = A (M, K) · B (K, N), row-major fp32. A workgroup computes one TILE × TILE tile of C;
// each step over K brings one tile of A and one of B into shared memory, where TILE rows read them.
layout(local_size_x = 16, local_size_y = 16, local_size_x_id = 0, local_size_y_id = 0) in;
layout(constant_id = 0) const uint TILE = 16;

layout(set = 0, binding = 0) readonly buffer A { float a[]; };
layout(set = 0, binding = 1) readonly buffer B { float b[]; };
layout(set = 0, binding = 2) writeonly buffer C { float c[]; };
layout(push_constant) uniform Sizes { uint m; uint n; uint k; };

shared float tile_a[TILE][TILE];
shared float tile_b[TILE][TILE];

void main() {
    uint row = gl_GlobalInvocationID.y, column = gl_GlobalInvocationID.x;
    uint y = gl_LocalInvocationID.y, x = gl_LocalInvocationID.x;
    float sum = 0.0;
    for (uint start = 0; start < k; start += TILE) {
        tile_a[y][x] = row < m && start + x < k ? a[row * k + start + x] : 0.0;
        tile_b[y][x] = start + y < k && column < n ? b[(start + y) * n + column] : 0.0;
        barrier();
        for (uint i = 0; i < TILE; i++) sum += tile_a[y][i] * tile_b[i][x];
        barrier();
    }
    if (row < m && column < n) c[row * n + column] = sum;
}
