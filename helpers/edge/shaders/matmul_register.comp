#version 450
#extension GL_EXT_control_flow_attributes : require
// C (M, N) = A (M, K) · B (K, N), row-major fp32. As matmul_tiled, but each invocation keeps
// ROWS × COLUMNS elements of C in registers: ROWS + COLUMNS loads from shared memory serve
// ROWS * COLUMNS multiply-adds.
layout(local_size_x = 8, local_size_y = 8, local_size_x_id = 0, local_size_y_id = 0) in;
layout(constant_id = 0) const uint SIDE = 8;     // invocations of a workgroup, each way
layout(constant_id = 1) const uint ROWS = 8;     // of C, of one invocation
layout(constant_id = 2) const uint COLUMNS = 8;  // of C, of one invocation
layout(constant_id = 3) const uint DEPTH = 8;    // of K, in shared memory at a time

layout(set = 0, binding = 0) readonly buffer A { float a[]; };
layout(set = 0, binding = 1) readonly buffer B { float b[]; };
layout(set = 0, binding = 2) writeonly buffer C { float c[]; };
layout(push_constant) uniform Sizes { uint m; uint n; uint k; };

const uint GROUP = SIDE * SIDE, TILE_M = SIDE * ROWS, TILE_N = SIDE * COLUMNS;
shared float tile_a[TILE_M * DEPTH];
shared float tile_b[DEPTH * TILE_N];

void main() {
    uint x = gl_LocalInvocationID.x, y = gl_LocalInvocationID.y, own = gl_LocalInvocationIndex;
    uint top = gl_WorkGroupID.y * TILE_M, left = gl_WorkGroupID.x * TILE_N;
    float sums[ROWS * COLUMNS];
    [[unroll]] for (uint e = 0; e < ROWS * COLUMNS; e++) sums[e] = 0.0;
    for (uint start = 0; start < k; start += DEPTH) {
        for (uint e = own; e < TILE_M * DEPTH; e += GROUP) {
            uint row = top + e / DEPTH, i = start + e % DEPTH;
            tile_a[e] = row < m && i < k ? a[row * k + i] : 0.0;
        }
        for (uint e = own; e < DEPTH * TILE_N; e += GROUP) {
            uint i = start + e / TILE_N, column = left + e % TILE_N;
            tile_b[e] = i < k && column < n ? b[i * n + column] : 0.0;
        }
        barrier();
        for (uint i = 0; i < DEPTH; i++) {
            float left_values[ROWS], right_values[COLUMNS];
            [[unroll]] for (uint r = 0; r < ROWS; r++) left_values[r] = tile_a[(y + r * SIDE) * DEPTH + i];
            [[unroll]] for (uint s = 0; s < COLUMNS; s++) right_values[s] = tile_b[i * TILE_N + x + s * SIDE];
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                [[unroll]] for (uint s = 0; s < COLUMNS; s++) {
                    sums[r * COLUMNS + s] += left_values[r] * right_values[s];
                }
            }
        }
        barrier();
    }
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        [[unroll]] for (uint s = 0; s < COLUMNS; s++) {
            uint row = top + y + r * SIDE, column = left + x + s * SIDE;
            if (row < m && column < n) c[row * n + column] = sums[r * COLUMNS + s];
        }
    }
}
