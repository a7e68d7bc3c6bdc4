#include <metal_stdlib>
using namespace metal;
// C (M, N) = A (M, K) · B (K, N), row-major fp32. As matmul_tiled, but each thread keeps ROWS × COLUMNS
// elements of C in registers: ROWS + COLUMNS loads from threadgroup memory serve ROWS * COLUMNS
// multiply-adds.
#define SIDE 8  // threads of a threadgroup, each way
#define ROWS 8  // of C, of one thread
#define COLUMNS 8  // of C, of one thread
#define DEPTH 8  // of K, in threadgroup memory at a time

constant constexpr uint GROUP = SIDE * SIDE, TILE_M = SIDE * ROWS, TILE_N = SIDE * COLUMNS;

kernel void matmul_register(device const float* a [[buffer(0)]],
                            device const float* b [[buffer(1)]],
                            device float* c [[buffer(2)]],
                            constant uint& m [[buffer(3)]],
                            constant uint& n [[buffer(4)]],
                            constant uint& k [[buffer(5)]],
                            uint2 local [[thread_position_in_threadgroup]],
                            uint2 group [[threadgroup_position_in_grid]],
                            uint own [[thread_index_in_threadgroup]]) {
    threadgroup float tile_a[TILE_M * DEPTH];
    threadgroup float tile_b[DEPTH * TILE_N];
    uint x = local.x, y = local.y;
    uint top = group.y * TILE_M, left = group.x * TILE_N;
    float sums[ROWS * COLUMNS];
    for (uint e = 0; e < ROWS * COLUMNS; e++) sums[e] = 0.0f;
    for (uint start = 0; start < k; start += DEPTH) {
        for (uint e = own; e < TILE_M * DEPTH; e += GROUP) {
            uint row = top + e / DEPTH, i = start + e % DEPTH;
            tile_a[e] = row < m && i < k ? a[row * k + i] : 0.0f;
        }
        for (uint e = own; e < DEPTH * TILE_N; e += GROUP) {
            uint i = start + e / TILE_N, column = left + e % TILE_N;
            tile_b[e] = i < k && column < n ? b[i * n + column] : 0.0f;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = 0; i < DEPTH; i++) {
            float left_values[ROWS], right_values[COLUMNS];
            for (uint r = 0; r < ROWS; r++) left_values[r] = tile_a[(y + r * SIDE) * DEPTH + i];
            for (uint s = 0; s < COLUMNS; s++) right_values[s] = tile_b[i * TILE_N + x + s * SIDE];
            for (uint r = 0; r < ROWS; r++) {
                for (uint s = 0; s < COLUMNS; s++) sums[r * COLUMNS + s] += left_values[r] * right_values[s];
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (uint r = 0; r < ROWS; r++) {
        for (uint s = 0; s < COLUMNS; s++) {
            uint row = top + y + r * SIDE, column = left + x + s * SIDE;
            if (row < m && column < n) c[row * n + column] = sums[r * COLUMNS + s];
        }
    }
}
