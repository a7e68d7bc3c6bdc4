#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;
// C (M, N) fp32 = A (M, K) fp16 · B (K, N) fp16, row-major. A simdgroup holds the matrices together:
// which lane has which element is the device's own affair. Metal has 8 × 8 matrices and no others; a
// threadgroup is one simdgroup of LANES, and has ROWS × COLUMNS tiles of C. Tiles on the edge, and rows
// that do not start on 16 bytes, go through threadgroup memory, filled up with zeros.
#define LANES 32
#define TILE_M 8
#define TILE_N 8
#define TILE_K 8
#define ROWS 2
#define COLUMNS 2

static_assert(TILE_M == 8 && TILE_N == 8 && TILE_K == 8, "simdgroup_matrix is 8 × 8");

inline void stage_a(device const half* a, threadgroup half* edge, uint m, uint k, uint top, uint start, uint lane) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint e = lane; e < TILE_M * TILE_K; e += LANES) {
        uint row = top + e / TILE_K, i = start + e % TILE_K;
        edge[e] = row < m && i < k ? a[row * k + i] : half(0.0f);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

inline void stage_b(device const half* b, threadgroup half* edge, uint n, uint k, uint start, uint left, uint lane) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint e = lane; e < TILE_K * TILE_N; e += LANES) {
        uint i = start + e / TILE_N, column = left + e % TILE_N;
        edge[e] = i < k && column < n ? b[i * n + column] : half(0.0f);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

kernel void matmul_cooperative_f16(device const half* a [[buffer(0)]],
                                   device const half* b [[buffer(1)]],
                                   device float* c [[buffer(2)]],
                                   constant uint& m [[buffer(3)]],
                                   constant uint& n [[buffer(4)]],
                                   constant uint& k [[buffer(5)]],
                                   uint lane [[thread_index_in_simdgroup]],
                                   uint2 group [[threadgroup_position_in_grid]]) {
    threadgroup half edge_a[TILE_M * TILE_K];
    threadgroup half edge_b[TILE_K * TILE_N];
    threadgroup float edge_c[TILE_M * TILE_N];
    uint top = group.y * TILE_M * ROWS, left = group.x * TILE_N * COLUMNS;
    bool aligned = k % 8 == 0 && n % 8 == 0;
    simdgroup_float8x8 sums[ROWS * COLUMNS];
    simdgroup_half8x8 rows[ROWS], columns;
    for (uint e = 0; e < ROWS * COLUMNS; e++) sums[e] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (uint start = 0; start < k; start += TILE_K) {
        bool inside = aligned && start + TILE_K <= k;
        for (uint r = 0; r < ROWS; r++) {
            uint row = top + r * TILE_M;
            if (inside && row + TILE_M <= m) {
                simdgroup_load(rows[r], a + row * k + start, k);
            } else {
                stage_a(a, edge_a, m, k, row, start, lane);
                simdgroup_load(rows[r], edge_a, TILE_K);
            }
        }
        for (uint s = 0; s < COLUMNS; s++) {
            uint column = left + s * TILE_N;
            if (inside && column + TILE_N <= n) {
                simdgroup_load(columns, b + start * n + column, n);
            } else {
                stage_b(b, edge_b, n, k, start, column, lane);
                simdgroup_load(columns, edge_b, TILE_N);
            }
            for (uint r = 0; r < ROWS; r++) {
                simdgroup_multiply_accumulate(sums[r * COLUMNS + s], rows[r], columns, sums[r * COLUMNS + s]);
            }
        }
    }
    for (uint r = 0; r < ROWS; r++) {
        for (uint s = 0; s < COLUMNS; s++) {
            uint row = top + r * TILE_M, column = left + s * TILE_N;
            if (aligned && row + TILE_M <= m && column + TILE_N <= n) {
                simdgroup_store(sums[r * COLUMNS + s], c + row * n + column, n);
                continue;
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
            simdgroup_store(sums[r * COLUMNS + s], edge_c, TILE_N);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            for (uint e = lane; e < TILE_M * TILE_N; e += LANES) {
                uint y = row + e / TILE_N, x = column + e % TILE_N;
                if (y < m && x < n) c[y * n + x] = edge_c[e];
            }
        }
    }
}
