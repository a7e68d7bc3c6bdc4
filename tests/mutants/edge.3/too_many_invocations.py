"""symptom: wrong interface

The register rung still has an invocation for each element.
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


def answer(rung):
    return SHARED
