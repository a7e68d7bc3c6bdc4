#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_shuffle : require
// Y (tokens, rows) = X (tokens, k) · Wᵀ with W (rows, k) in unsigned BITS-bit integers, laid out as in
// dequant_matvec. Lanes are rows, ROWS of them each; a value is dequantised once for TOKENS tokens. The lanes
// hold HOLD neighbours along k of each of these tokens, one load a token, and pass them round. LANES is at
// most the subgroup's size; HOLD, a power of two, is at most LANES and divides GROUP.
layout(local_size_x = 8, local_size_x_id = 0) in;
layout(constant_id = 0) const uint LANES = 8;
layout(constant_id = 1) const uint BITS = 4;    // 4 or 8
layout(constant_id = 2) const uint GROUP = 32;  // a multiple of 32 / BITS
layout(constant_id = 3) const uint HOLD = 8;
layout(constant_id = 4) const uint ROWS = 4;
layout(constant_id = 5) const uint TOKENS = 16;

layout(set = 0, binding = 0) readonly buffer Words { uint words[]; };    // (k / PER_WORD, rows)
layout(set = 0, binding = 1) readonly buffer Scales { uint scales[]; };  // (k / GROUP, rows)
layout(set = 0, binding = 2) readonly buffer X { float x[]; };           // (tokens, k)
layout(set = 0, binding = 3) writeonly buffer Y { float y[]; };          // (tokens, rows)
layout(push_constant) uniform Sizes { uint tokens; uint rows; uint k; };

const uint PER_WORD = 32 / BITS, MASK = (1u << BITS) - 1u;
const uint STRIDE = HOLD < PER_WORD ? HOLD : PER_WORD;  // values of a word that one hold covers

void main() {
    uint lane = min(gl_SubgroupInvocationID, HOLD - 1);
    uint top = gl_WorkGroupID.y * TOKENS, left = gl_WorkGroupID.x * LANES * ROWS + gl_LocalInvocationID.x;
    uint starts[TOKENS], columns[ROWS];  // the last token and row again, instead of what lies outside
    float sums[TOKENS * ROWS];
    [[unroll]] for (uint t = 0; t < TOKENS; t++) starts[t] = min(top + t, tokens - 1) * k;
    [[unroll]] for (uint r = 0; r < ROWS; r++) columns[r] = min(left + r * LANES, rows - 1);
    [[unroll]] for (uint e = 0; e < TOKENS * ROWS; e++) sums[e] = 0.0;
    for (uint group = 0; group * GROUP < k; group++) {
        vec2 scale_zero[ROWS];
        [[unroll]] for (uint r = 0; r < ROWS; r++) scale_zero[r] = unpackHalf2x16(scales[group * rows + columns[r]]);
        for (uint start = group * GROUP; start < (group + 1) * GROUP; start += HOLD) {
            float held[TOKENS];
            [[unroll]] for (uint t = 0; t < TOKENS; t++) {
                held[t] = start + lane < k ? x[starts[t] + start + lane] : 0.0;
            }
            [[unroll]] for (uint j = 0; j < HOLD; j += STRIDE) {
                uint word[ROWS];
                [[unroll]] for (uint r = 0; r < ROWS; r++) {
                    uint found = words[(start + j) / PER_WORD * rows + columns[r]];
                    word[r] = found >> (BITS * ((start + j) % PER_WORD));
                }
                [[unroll]] for (uint i = 0; i < STRIDE; i++) {
                    float value[ROWS];
                    [[unroll]] for (uint r = 0; r < ROWS; r++) {
                        value[r] = scale_zero[r].x * (float(word[r] >> (BITS * i) & MASK) - scale_zero[r].y);
                    }
                    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
                        float passed = subgroupShuffle(held[t], j + i);
                        [[unroll]] for (uint r = 0; r < ROWS; r++) sums[t * ROWS + r] += passed * value[r];
                    }
                }
            }
        }
    }
    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            uint token = top + t, row = left + r * LANES;
            if (token < tokens && row < rows) y[token * rows + row] = sums[t * ROWS + r];
        }
    }
}
