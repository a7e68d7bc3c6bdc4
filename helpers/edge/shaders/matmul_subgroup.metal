#include <metal_stdlib>
using namespace metal;
// C (M, N) = A (M, K) · B (K, N), row-major fp32. Neither threadgroup memory nor barriers: the lanes of
// a simdgroup hold LANES neighbours along K of each of ROWS rows of A, one load a row, and pass them
// round. A lane has COLUMNS columns of C. LANES is at most the simdgroup's size.
#define GROUP 8  // threads of a threadgroup
#define ROWS 16
#define COLUMNS 4
#define LANES 4

kernel void matmul_subgroup(device const float* a [[buffer(0)]],
                            device const float* b [[buffer(1)]],
                            device float* c [[buffer(2)]],
                            constant uint& m [[buffer(3)]],
                            constant uint& n [[buffer(4)]],
                            constant uint& k [[buffer(5)]],
                            uint2 local [[thread_position_in_threadgroup]],
                            uint2 group [[threadgroup_position_in_grid]],
                            uint own [[thread_index_in_simdgroup]]) {
    uint top = group.y * ROWS, left = group.x * GROUP * COLUMNS + local.x;
    uint lane = min(own, uint(LANES - 1)), whole = k / LANES * LANES;
    uint rows[ROWS], columns[COLUMNS];  // the last row and column again, instead of what lies outside
    for (uint r = 0; r < ROWS; r++) rows[r] = min(top + r, m - 1) * k;
    for (uint s = 0; s < COLUMNS; s++) columns[s] = min(left + s * GROUP, n - 1);
    float sums[ROWS * COLUMNS];
    for (uint e = 0; e < ROWS * COLUMNS; e++) sums[e] = 0.0f;
    for (uint start = 0; start < whole; start += LANES) {
        float held[ROWS], right[COLUMNS];
        for (uint r = 0; r < ROWS; r++) held[r] = a[rows[r] + start + lane];
        for (uint j = 0; j < LANES; j++) {
            for (uint s = 0; s < COLUMNS; s++) right[s] = b[(start + j) * n + columns[s]];
            for (uint r = 0; r < ROWS; r++) {
                float value = simd_shuffle(held[r], ushort(j));
                for (uint s = 0; s < COLUMNS; s++) sums[r * COLUMNS + s] += value * right[s];
            }
        }
    }
    for (uint i = whole; i < k; i++) {
        float right[COLUMNS];
        for (uint s = 0; s < COLUMNS; s++) right[s] = b[i * n + columns[s]];
        for (uint r = 0; r < ROWS; r++) {
            float value = a[rows[r] + i];
            for (uint s = 0; s < COLUMNS; s++) sums[r * COLUMNS + s] += value * right[s];
        }
    }
    for (uint r = 0; r < ROWS; r++) {
        for (uint s = 0; s < COLUMNS; s++) {
            if (top + r < m && left + s * GROUP < n) c[(top + r) * n + left + s * GROUP] = sums[r * COLUMNS + s];
        }
    }
}
