"""symptom: wrong interface

The tile of C, element by element: right, and no matrix unit sees it.
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
    head = f"#define M {shape.m}\n#define N {shape.n}\n#define GROUP {2 * lanes}"
    return (
        head
        + """
layout(local_size_x = GROUP) in;
void main() {
    for (uint e = gl_LocalInvocationID.x; e < M * 2 * N; e += GROUP) {
        uint row = gl_WorkGroupID.y * M + e / (2 * N), column = gl_WorkGroupID.x * 2 * N + e % (2 * N);
        if (row >= m || column >= n) continue;
        float sum = 0.0;
        for (uint i = 0; i < k; i++) sum += load_a(row, i) * load_b(i, column);
        store_c(row, column, sum);
    }
}"""
    )
