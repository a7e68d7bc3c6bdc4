#include <metal_stdlib>
using namespace metal;
// C (M, N) int32 = A (M, K) int8 · B (K, N) int8, row-major. Metal's simdgroup_matrix holds floats only:
// where the SPIR-V twin reaches for the matrix unit, the lanes of this one do the integer products
// themselves, TILE_M × TILE_N tiles at a time, from the same tiles in threadgroup memory.
#define LANES 32
#define TILE_M 8
#define TILE_N 8
#define TILE_K 8
#define ROWS 2
#define COLUMNS 2

constant constexpr uint TILES = ROWS * COLUMNS, SIZE = TILE_M * TILE_N, EACH = (SIZE + LANES - 1) / LANES;

kernel void matmul_cooperative_s8(device const char* a [[buffer(0)]],
                                  device const char* b [[buffer(1)]],
                                  device int* c [[buffer(2)]],
                                  constant uint& m [[buffer(3)]],
                                  constant uint& n [[buffer(4)]],
                                  constant uint& k [[buffer(5)]],
                                  uint lane [[thread_index_in_threadgroup]],
                                  uint2 group [[threadgroup_position_in_grid]]) {
    threadgroup char rows[ROWS * TILE_M * TILE_K];
    threadgroup char columns[TILE_K * COLUMNS * TILE_N];
    uint top = group.y * TILE_M * ROWS, left = group.x * TILE_N * COLUMNS;
    int sums[TILES * EACH];
    for (uint e = 0; e < TILES * EACH; e++) sums[e] = 0;
    for (uint start = 0; start < k; start += TILE_K) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint e = lane; e < ROWS * TILE_M * TILE_K; e += LANES) {
            uint row = top + e / TILE_K, i = start + e % TILE_K;
            rows[e] = row < m && i < k ? a[row * k + i] : char(0);
        }
        for (uint e = lane; e < TILE_K * COLUMNS * TILE_N; e += LANES) {
            uint i = start + e / (COLUMNS * TILE_N), column = left + e % (COLUMNS * TILE_N);
            columns[e] = i < k && column < n ? b[i * n + column] : char(0);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint t = 0; t < TILES; t++) {
            for (uint e = lane; e < SIZE; e += LANES) {
                uint y = t / COLUMNS * TILE_M + e / TILE_N, x = t % COLUMNS * TILE_N + e % TILE_N;
                int sum = 0;
                for (uint i = 0; i < TILE_K; i++) {
                    sum += int(rows[y * TILE_K + i]) * int(columns[i * COLUMNS * TILE_N + x]);
                }
                sums[t * EACH + e / LANES] += sum;
            }
        }
    }
    for (uint t = 0; t < TILES; t++) {
        for (uint e = lane; e < SIZE; e += LANES) {
            uint y = top + t / COLUMNS * TILE_M + e / TILE_N, x = left + t % COLUMNS * TILE_N + e % TILE_N;
            if (y < m && x < n) c[y * n + x] = sums[t * EACH + e / LANES];
        }
    }
}
