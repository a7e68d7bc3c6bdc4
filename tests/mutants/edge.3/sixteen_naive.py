"""symptom: too much traffic

The register rung keeps sums in registers and shares nothing.
"""

SHARED = """
layout(local_size_x = 16, local_size_y = 16) in;
shared float tile_a[16][16];
shared float tile_b[16][16];
void main() {
    uint row = gl_GlobalInvocationID.y, column = gl_GlobalInvocationID.x;
    uint y = gl_LocalInvocationID.y, x = gl_LocalInvocationID.x;
    float sum = 0.0;
    for (uint start = 0; start < k; start += 16) {
        tile_a[y][x] = row < m && start + x < k ? load_a(row, start + x) : 0.0;
        tile_b[y][x] = start + y < k && column < n ? load_b(start + y, column) : 0.0;
        barrier();
        for (uint i = 0; i < 16; i++) sum += tile_a[y][i] * tile_b[i][x];
        barrier();
    }
    if (row < m && column < n) store_c(row, column, sum);
}
"""
REGISTER = """
layout(local_size_x = 8, local_size_y = 8) in;
void main() {
    for (uint e = 0; e < 16; e++) {
        uint row = gl_WorkGroupID.y * 32 + gl_LocalInvocationID.y + e / 4 * 8;
        uint column = gl_WorkGroupID.x * 32 + gl_LocalInvocationID.x + e % 4 * 8;
        float sum = 0.0;
        for (uint i = 0; i < k; i++) if (row < m && column < n) sum += load_a(row, i) * load_b(i, column);
        if (row < m && column < n) store_c(row, column, sum);
    }
}
"""


def answer(rung):
    return {"shared": SHARED, "register": REGISTER}[rung]
