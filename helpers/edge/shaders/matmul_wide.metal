#include <metal_stdlib>
using namespace metal;
// C (M, N) = A (M, K) · B (K, N), row-major fp32, K and N even. As matmul_subgroup, but each load brings
// two neighbours. The SPIR-V twin moves 64-bit words for the sake of drivers on CPUs; float2 does here.
#define GROUP 8  // threads of a threadgroup
#define ROWS 32
#define COLUMNS 2  // in pairs
#define LANES 4

kernel void matmul_wide(device const float2* a [[buffer(0)]],
                        device const float2* b [[buffer(1)]],
                        device float2* c [[buffer(2)]],
                        constant uint& m [[buffer(3)]],
                        constant uint& n [[buffer(4)]],
                        constant uint& k [[buffer(5)]],
                        uint2 local [[thread_position_in_threadgroup]],
                        uint2 group [[threadgroup_position_in_grid]],
                        uint own [[thread_index_in_simdgroup]]) {
    uint k2 = k / 2, n2 = n / 2, whole = k2 / LANES * LANES;
    uint top = group.y * ROWS, left = group.x * GROUP * COLUMNS + local.x;
    uint lane = min(own, uint(LANES - 1));
    uint rows[ROWS], columns[COLUMNS];  // the last row and column again, instead of what lies outside
    for (uint r = 0; r < ROWS; r++) rows[r] = min(top + r, m - 1) * k2;
    for (uint s = 0; s < COLUMNS; s++) columns[s] = min(left + s * GROUP, n2 - 1);
    float2 sums[ROWS * COLUMNS];
    for (uint e = 0; e < ROWS * COLUMNS; e++) sums[e] = float2(0.0f);
    for (uint start = 0; start < whole; start += LANES) {
        float2 held[ROWS], right[COLUMNS];
        for (uint r = 0; r < ROWS; r++) held[r] = a[rows[r] + start + lane];
        for (uint j = 0; j < 2 * LANES; j++) {
            for (uint s = 0; s < COLUMNS; s++) right[s] = b[(2 * start + j) * n2 + columns[s]];
            for (uint r = 0; r < ROWS; r++) {
                float value = simd_shuffle(held[r][j & 1], ushort(j / 2));
                for (uint s = 0; s < COLUMNS; s++) sums[r * COLUMNS + s] += value * right[s];
            }
        }
    }
    for (uint i = 2 * whole; i < k; i++) {
        float2 right[COLUMNS];
        for (uint s = 0; s < COLUMNS; s++) right[s] = b[i * n2 + columns[s]];
        for (uint r = 0; r < ROWS; r++) {
            float2 pair = a[rows[r] + i / 2];
            float value = (i & 1) == 0 ? pair.x : pair.y;
            for (uint s = 0; s < COLUMNS; s++) sums[r * COLUMNS + s] += value * right[s];
        }
    }
    for (uint r = 0; r < ROWS; r++) {
        for (uint s = 0; s < COLUMNS; s++) {
            uint column = left + s * GROUP;
            if (top + r < m && column < n2) c[(top + r) * n2 + column] = sums[r * COLUMNS + s];
        }
    }
}
