#version 450
#extension GL_EXT_control_flow_attributes : require
// C (M, N) = A (M, K) · B (K, N), row-major fp32, K and N multiples of 4. As matmul_register, but
// every load and store moves four neighbours: a quarter of the memory instructions.
layout(local_size_x = 8, local_size_y = 8, local_size_x_id = 0, local_size_y_id = 0) in;
layout(constant_id = 0) const uint SIDE = 8;     // invocations of a workgroup, each way
layout(constant_id = 1) const uint ROWS = 8;     // of C, of one invocation
layout(constant_id = 2) const uint COLUMNS = 2;  // of C in fours, of one invocation
layout(constant_id = 3) const uint DEPTH = 2;    // of K in fours, in shared memory at a time

layout(set = 0, binding = 0) readonly buffer A { vec4 a[]; };
layout(set = 0, binding = 1) readonly buffer B { vec4 b[]; };
layout(set = 0, binding = 2) writeonly buffer C { vec4 c[]; };
layout(push_constant) uniform Sizes { uint m; uint n; uint k; };

const uint GROUP = SIDE * SIDE, TILE_M = SIDE * ROWS, TILE_N = SIDE * COLUMNS;  // TILE_N in fours
shared vec4 tile_a[TILE_M * DEPTH];
shared vec4 tile_b[DEPTH * 4 * TILE_N];

void main() {
    uint x = gl_LocalInvocationID.x, y = gl_LocalInvocationID.y, own = gl_LocalInvocationIndex;
    uint top = gl_WorkGroupID.y * TILE_M, left = gl_WorkGroupID.x * TILE_N, n4 = n / 4, k4 = k / 4;
    vec4 sums[ROWS * COLUMNS];
    [[unroll]] for (uint e = 0; e < ROWS * COLUMNS; e++) sums[e] = vec4(0.0);
    for (uint start = 0; start < k4; start += DEPTH) {
        for (uint e = own; e < TILE_M * DEPTH; e += GROUP) {
            uint row = top + e / DEPTH, i = start + e % DEPTH;
            tile_a[e] = row < m && i < k4 ? a[row * k4 + i] : vec4(0.0);
        }
        for (uint e = own; e < DEPTH * 4 * TILE_N; e += GROUP) {
            uint i = start * 4 + e / TILE_N, column = left + e % TILE_N;
            tile_b[e] = i < k && column < n4 ? b[i * n4 + column] : vec4(0.0);
        }
        barrier();
        for (uint i = 0; i < DEPTH; i++) {
            vec4 left_values[ROWS];
            [[unroll]] for (uint r = 0; r < ROWS; r++) left_values[r] = tile_a[(y + r * SIDE) * DEPTH + i];
            [[unroll]] for (uint j = 0; j < 4; j++) {
                [[unroll]] for (uint s = 0; s < COLUMNS; s++) {
                    vec4 right = tile_b[(i * 4 + j) * TILE_N + x + s * SIDE];
                    [[unroll]] for (uint r = 0; r < ROWS; r++) sums[r * COLUMNS + s] += left_values[r][j] * right;
                }
            }
        }
        barrier();
    }
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        [[unroll]] for (uint s = 0; s < COLUMNS; s++) {
            uint row = top + y + r * SIDE, column = left + x + s * SIDE;
            if (row < m && column < n4) c[row * n4 + column] = sums[r * COLUMNS + s];
        }
    }
}
