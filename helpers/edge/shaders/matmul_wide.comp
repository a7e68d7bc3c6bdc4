#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_KHR_shader_subgroup_shuffle : require
// C (M, N) = A (M, K) · B (K, N), row-major fp32, K and N even. As matmul_subgroup, but each load
// brings two neighbours as one 64-bit word. A device that gives each lane its own load, one after
// another, as drivers on CPUs do, needs half as many; GPUs gain as much from vec2.
layout(local_size_x = 8, local_size_x_id = 0) in;
layout(constant_id = 0) const uint GROUP = 8;    // invocations of a workgroup
layout(constant_id = 1) const uint ROWS = 32;
layout(constant_id = 2) const uint COLUMNS = 2;  // in pairs
layout(constant_id = 3) const uint LANES = 4;

layout(set = 0, binding = 0) readonly buffer A { uint64_t a[]; };
layout(set = 0, binding = 1) readonly buffer B { uint64_t b[]; };
layout(set = 0, binding = 2) writeonly buffer C { uint64_t c[]; };
layout(push_constant) uniform Sizes { uint m; uint n; uint k; };

vec2 sums[ROWS * COLUMNS];

vec2 floats(uint64_t pair) { return uintBitsToFloat(unpack32(pair)); }

void multiply_add(uint r, float left, vec2 right[COLUMNS]) {
    [[unroll]] for (uint s = 0; s < COLUMNS; s++) sums[r * COLUMNS + s] += left * right[s];
}

void main() {
    uint k2 = k / 2, n2 = n / 2, whole = k2 / LANES * LANES;
    uint top = gl_WorkGroupID.y * ROWS, left = gl_WorkGroupID.x * GROUP * COLUMNS + gl_LocalInvocationID.x;
    uint lane = min(gl_SubgroupInvocationID, LANES - 1);
    uint rows[ROWS], columns[COLUMNS];  // the last row and column again, instead of what lies outside
    [[unroll]] for (uint r = 0; r < ROWS; r++) rows[r] = min(top + r, m - 1) * k2;
    [[unroll]] for (uint s = 0; s < COLUMNS; s++) columns[s] = min(left + s * GROUP, n2 - 1);
    [[unroll]] for (uint e = 0; e < ROWS * COLUMNS; e++) sums[e] = vec2(0.0);
    for (uint start = 0; start < whole; start += LANES) {
        vec2 held[ROWS], right[COLUMNS];
        [[unroll]] for (uint r = 0; r < ROWS; r++) held[r] = floats(a[rows[r] + start + lane]);
        [[unroll]] for (uint j = 0; j < 2 * LANES; j++) {
            [[unroll]] for (uint s = 0; s < COLUMNS; s++) right[s] = floats(b[(2 * start + j) * n2 + columns[s]]);
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                multiply_add(r, subgroupShuffle(held[r][j & 1], j / 2), right);
            }
        }
    }
    for (uint i = 2 * whole; i < k; i++) {
        vec2 right[COLUMNS];
        [[unroll]] for (uint s = 0; s < COLUMNS; s++) right[s] = floats(b[i * n2 + columns[s]]);
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            vec2 pair = floats(a[rows[r] + i / 2]);
            multiply_add(r, (i & 1) == 0 ? pair.x : pair.y, right);
        }
    }
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        [[unroll]] for (uint s = 0; s < COLUMNS; s++) {
            uint column = left + s * GROUP;
            if (top + r < m && column < n2) c[(top + r) * n2 + column] = pack64(floatBitsToUint(sums[r * COLUMNS + s]));
        }
    }
}
