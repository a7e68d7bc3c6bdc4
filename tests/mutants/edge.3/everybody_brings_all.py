"""symptom: too much traffic

Each row of invocations brings the whole tile of A again.
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
shared float tile_a[32][8];
shared float tile_b[8][32];
void main() {
    uint x = gl_LocalInvocationID.x, y = gl_LocalInvocationID.y, own = gl_LocalInvocationIndex;
    uint top = gl_WorkGroupID.y * 32, left = gl_WorkGroupID.x * 32;
    float sums[16];
    for (uint e = 0; e < 16; e++) sums[e] = 0.0;
    for (uint start = 0; start < k; start += 8) {
        for (uint e = own % 8; e < 256; e += 8) {
            uint row = top + e / 8, i = start + e % 8, j = start + e / 32, column = left + e % 32;
            tile_a[e / 8][e % 8] = row < m && i < k ? load_a(row, i) : 0.0;
            tile_b[e / 32][e % 32] = j < k && column < n ? load_b(j, column) : 0.0;
        }
        barrier();
        for (uint i = 0; i < 8; i++) {
            for (uint e = 0; e < 16; e++) sums[e] += tile_a[y + e / 4 * 8][i] * tile_b[i][x + e % 4 * 8];
        }
        barrier();
    }
    for (uint e = 0; e < 16; e++) {
        uint row = top + y + e / 4 * 8, column = left + x + e % 4 * 8;
        if (row < m && column < n) store_c(row, column, sums[e]);
    }
}
"""


def answer(rung):
    return {"shared": SHARED, "register": REGISTER}[rung]
