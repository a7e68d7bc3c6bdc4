"""symptom: hangs

Invocations whose column lies outside of C skip the barrier.
"""


def answer(shape, lanes):
    if shape is None:
        return """
layout(local_size_x = 8, local_size_y = 8) in;
void main() {
    uint row = gl_GlobalInvocationID.y, column = gl_GlobalInvocationID.x;
    if (row >= m || column >= n) return;
    float sum = 0.0;
    for (uint i = 0; i < k; i++) sum += load_a(row, i) * load_b(i, column);
    store_c(row, column, sum);
}"""
    return (
        f"#define M {shape.m}\n#define N {shape.n}\n#define K {shape.k}\n#define GROUP {2 * lanes}"
        + """
#define SUMS coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>
layout(local_size_x = GROUP) in;
shared float16_t tile_a[M * K], tile_b[K * 2 * N];
shared float tile_c[M * 2 * N];
void main() {
    uint top = gl_WorkGroupID.y * M, left = gl_WorkGroupID.x * 2 * N, own = gl_SubgroupID * N;
    coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA> rows;
    coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB> columns;
    SUMS sums = SUMS(0.0);
    for (uint start = 0; start < k; start += K) {
        for (uint e = gl_LocalInvocationID.x; e < M * K; e += GROUP) {
            uint row = top + e / K, i = start + e % K;
            tile_a[e] = float16_t(row < m && i < k ? load_a(row, i) : 0.0);
        }
        for (uint e = gl_LocalInvocationID.x; e < K * 2 * N; e += GROUP) {
            uint i = start + e / (2 * N), column = left + e % (2 * N);
            tile_b[e] = float16_t(i < k && column < n ? load_b(i, column) : 0.0);
        }
        if (left + gl_LocalInvocationID.x < n) barrier();
        coopMatLoad(rows, tile_a, 0, K, gl_CooperativeMatrixLayoutRowMajor);
        coopMatLoad(columns, tile_b, own, 2 * N, gl_CooperativeMatrixLayoutRowMajor);
        sums = coopMatMulAdd(rows, columns, sums);
        barrier();
    }
    coopMatStore(sums, tile_c, own, 2 * N, gl_CooperativeMatrixLayoutRowMajor);
    barrier();
    for (uint e = gl_LocalInvocationID.x; e < M * 2 * N; e += GROUP) {
        uint row = top + e / (2 * N), column = left + e % (2 * N);
        if (row < m && column < n) store_c(row, column, tile_c[e]);
    }
}"""
    )
