#include <metal_stdlib>
using namespace metal;
// C (M, N) = A (M, K) · B (K, N), row-major fp32, K and N multiples of 4. As matmul_register, but every
// load and store moves four neighbours: a quarter of the memory instructions.
#define SIDE 8  // threads of a threadgroup, each way
#define ROWS 8  // of C, of one thread
#define COLUMNS 2  // of C in fours, of one thread
#define DEPTH 2  // of K in fours, in threadgroup memory at a time

constant constexpr uint GROUP = SIDE * SIDE, TILE_M = SIDE * ROWS, TILE_N = SIDE * COLUMNS;  // TILE_N in fours

kernel void matmul_vector(device const float4* a [[buffer(0)]],
                          device const float4* b [[buffer(1)]],
                          device float4* c [[buffer(2)]],
                          constant uint& m [[buffer(3)]],
                          constant uint& n [[buffer(4)]],
                          constant uint& k [[buffer(5)]],
                          uint2 local [[thread_position_in_threadgroup]],
                          uint2 group [[threadgroup_position_in_grid]],
                          uint own [[thread_index_in_threadgroup]]) {
    threadgroup float4 tile_a[TILE_M * DEPTH];
    threadgroup float4 tile_b[DEPTH * 4 * TILE_N];
    uint x = local.x, y = local.y;
    uint top = group.y * TILE_M, left = group.x * TILE_N, n4 = n / 4, k4 = k / 4;
    float4 sums[ROWS * COLUMNS];
    for (uint e = 0; e < ROWS * COLUMNS; e++) sums[e] = float4(0.0f);
    for (uint start = 0; start < k4; start += DEPTH) {
        for (uint e = own; e < TILE_M * DEPTH; e += GROUP) {
            uint row = top + e / DEPTH, i = start + e % DEPTH;
            tile_a[e] = row < m && i < k4 ? a[row * k4 + i] : float4(0.0f);
        }
        for (uint e = own; e < DEPTH * 4 * TILE_N; e += GROUP) {
            uint i = start * 4 + e / TILE_N, column = left + e % TILE_N;
            tile_b[e] = i < k && column < n4 ? b[i * n4 + column] : float4(0.0f);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = 0; i < DEPTH; i++) {
            float4 left_values[ROWS];
            for (uint r = 0; r < ROWS; r++) left_values[r] = tile_a[(y + r * SIDE) * DEPTH + i];
            for (uint j = 0; j < 4; j++) {
                for (uint s = 0; s < COLUMNS; s++) {
                    float4 right = tile_b[(i * 4 + j) * TILE_N + x + s * SIDE];
                    for (uint r = 0; r < ROWS; r++) sums[r * COLUMNS + s] += left_values[r][j] * right;
                }
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (uint r = 0; r < ROWS; r++) {
        for (uint s = 0; s < COLUMNS; s++) {
            uint row = top + y + r * SIDE, column = left + x + s * SIDE;
            if (row < m && column < n4) c[row * n4 + column] = sums[r * COLUMNS + s];
        }
    }
}
