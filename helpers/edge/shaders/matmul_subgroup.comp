#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_shuffle : require
// C (M, N) = A (M, K) · B (K, N), row-major fp32. Neither shared memory nor barriers: the lanes of a
// subgroup hold LANES neighbours along K of each of ROWS rows of A, one load a row, and pass them
// round. A lane has COLUMNS columns of C. LANES is at most the subgroup's size.
layout(local_size_x = 8, local_size_x_id = 0) in;
layout(constant_id = 0) const uint GROUP = 8;  // invocations of a workgroup
layout(constant_id = 1) const uint ROWS = 16;
layout(constant_id = 2) const uint COLUMNS = 4;
layout(constant_id = 3) const uint LANES = 4;

layout(set = 0, binding = 0) readonly buffer A { float a[]; };
layout(set = 0, binding = 1) readonly buffer B { float b[]; };
layout(set = 0, binding = 2) writeonly buffer C { float c[]; };
layout(push_constant) uniform Sizes { uint m; uint n; uint k; };

float sums[ROWS * COLUMNS];

void multiply_add(uint r, float left, float right[COLUMNS]) {
    [[unroll]] for (uint s = 0; s < COLUMNS; s++) sums[r * COLUMNS + s] += left * right[s];
}

void main() {
    uint top = gl_WorkGroupID.y * ROWS, left = gl_WorkGroupID.x * GROUP * COLUMNS + gl_LocalInvocationID.x;
    uint lane = min(gl_SubgroupInvocationID, LANES - 1), whole = k / LANES * LANES;
    uint rows[ROWS], columns[COLUMNS];  // the last row and column again, instead of what lies outside
    [[unroll]] for (uint r = 0; r < ROWS; r++) rows[r] = min(top + r, m - 1) * k;
    [[unroll]] for (uint s = 0; s < COLUMNS; s++) columns[s] = min(left + s * GROUP, n - 1);
    [[unroll]] for (uint e = 0; e < ROWS * COLUMNS; e++) sums[e] = 0.0;
    for (uint start = 0; start < whole; start += LANES) {
        float held[ROWS], right[COLUMNS];
        [[unroll]] for (uint r = 0; r < ROWS; r++) held[r] = a[rows[r] + start + lane];
        [[unroll]] for (uint j = 0; j < LANES; j++) {
            [[unroll]] for (uint s = 0; s < COLUMNS; s++) right[s] = b[(start + j) * n + columns[s]];
            [[unroll]] for (uint r = 0; r < ROWS; r++) multiply_add(r, subgroupShuffle(held[r], j), right);
        }
    }
    for (uint i = whole; i < k; i++) {
        float right[COLUMNS];
        [[unroll]] for (uint s = 0; s < COLUMNS; s++) right[s] = b[i * n + columns[s]];
        [[unroll]] for (uint r = 0; r < ROWS; r++) multiply_add(r, a[rows[r] + i], right);
    }
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        [[unroll]] for (uint s = 0; s < COLUMNS; s++) {
            if (top + r < m && left + s * GROUP < n) c[(top + r) * n + left + s * GROUP] = sums[r * COLUMNS + s];
        }
    }
}
