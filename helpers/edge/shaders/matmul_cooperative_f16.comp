#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
// C (M, N) fp32 = A (M, K) fp16 · B (K, N) fp16, row-major. A subgroup holds the matrices together:
// which lane has which element is the device's own affair. The shape TILE_M × TILE_N × TILE_K must be
// one that the device lists; a workgroup is one subgroup, and has ROWS × COLUMNS tiles of C. Tiles on
// the edge, and rows that do not start on 16 bytes, go through shared memory, filled up with zeros.
layout(local_size_x = 8, local_size_x_id = 0) in;
layout(constant_id = 0) const uint LANES = 8;
layout(constant_id = 1) const uint TILE_M = 8;
layout(constant_id = 2) const uint TILE_N = 8;
layout(constant_id = 3) const uint TILE_K = 8;
layout(constant_id = 4) const uint ROWS = 2;
layout(constant_id = 5) const uint COLUMNS = 2;

layout(set = 0, binding = 0) readonly buffer A { float16_t a[]; };
layout(set = 0, binding = 1) readonly buffer B { float16_t b[]; };
layout(set = 0, binding = 2) writeonly buffer C { float c[]; };
layout(push_constant) uniform Sizes { uint m; uint n; uint k; };

shared float16_t edge_a[TILE_M * TILE_K];
shared float16_t edge_b[TILE_K * TILE_N];
shared float edge_c[TILE_M * TILE_N];

void stage_a(uint top, uint start) {
    barrier();
    for (uint e = gl_LocalInvocationID.x; e < TILE_M * TILE_K; e += LANES) {
        uint row = top + e / TILE_K, i = start + e % TILE_K;
        edge_a[e] = row < m && i < k ? a[row * k + i] : float16_t(0.0);
    }
    barrier();
}

void stage_b(uint start, uint left) {
    barrier();
    for (uint e = gl_LocalInvocationID.x; e < TILE_K * TILE_N; e += LANES) {
        uint i = start + e / TILE_N, column = left + e % TILE_N;
        edge_b[e] = i < k && column < n ? b[i * n + column] : float16_t(0.0);
    }
    barrier();
}

void main() {
    uint top = gl_WorkGroupID.y * TILE_M * ROWS, left = gl_WorkGroupID.x * TILE_N * COLUMNS;
    bool aligned = k % 8 == 0 && n % 8 == 0;
    coopmat<float, gl_ScopeSubgroup, TILE_M, TILE_N, gl_MatrixUseAccumulator> sums[ROWS * COLUMNS];
    coopmat<float16_t, gl_ScopeSubgroup, TILE_M, TILE_K, gl_MatrixUseA> rows[ROWS];
    coopmat<float16_t, gl_ScopeSubgroup, TILE_K, TILE_N, gl_MatrixUseB> columns;
    [[unroll]] for (uint e = 0; e < ROWS * COLUMNS; e++) {
        sums[e] = coopmat<float, gl_ScopeSubgroup, TILE_M, TILE_N, gl_MatrixUseAccumulator>(0.0);
    }
    for (uint start = 0; start < k; start += TILE_K) {
        bool inside = aligned && start + TILE_K <= k;
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            uint row = top + r * TILE_M;
            if (inside && row + TILE_M <= m) {
                coopMatLoad(rows[r], a, row * k + start, k, gl_CooperativeMatrixLayoutRowMajor);
            } else {
                stage_a(row, start);
                coopMatLoad(rows[r], edge_a, 0, TILE_K, gl_CooperativeMatrixLayoutRowMajor);
            }
        }
        [[unroll]] for (uint s = 0; s < COLUMNS; s++) {
            uint column = left + s * TILE_N;
            if (inside && column + TILE_N <= n) {
                coopMatLoad(columns, b, start * n + column, n, gl_CooperativeMatrixLayoutRowMajor);
            } else {
                stage_b(start, column);
                coopMatLoad(columns, edge_b, 0, TILE_N, gl_CooperativeMatrixLayoutRowMajor);
            }
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                sums[r * COLUMNS + s] = coopMatMulAdd(rows[r], columns, sums[r * COLUMNS + s]);
            }
        }
    }
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        [[unroll]] for (uint s = 0; s < COLUMNS; s++) {
            uint row = top + r * TILE_M, column = left + s * TILE_N;
            if (aligned && row + TILE_M <= m && column + TILE_N <= n) {
                coopMatStore(sums[r * COLUMNS + s], c, row * n + column, n, gl_CooperativeMatrixLayoutRowMajor);
                continue;
            }
            barrier();
            coopMatStore(sums[r * COLUMNS + s], edge_c, 0, TILE_N, gl_CooperativeMatrixLayoutRowMajor);
            barrier();
            for (uint e = gl_LocalInvocationID.x; e < TILE_M * TILE_N; e += LANES) {
                uint y = row + e / TILE_N, x = column + e % TILE_N;
                if (y < m && x < n) c[y * n + x] = edge_c[e];
            }
        }
    }
}
