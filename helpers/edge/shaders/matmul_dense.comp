#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_shuffle : require
// Y (tokens, rows) = X (tokens, k) · Wᵀ with W (rows, k) row-major in fp32, or in fp16 with two values in a
// word. Lanes are tokens, TOKENS of them each. They hold HOLD neighbouring words of each of ROWS rows of W,
// one load a row, and pass them round, so that W is read once for LANES * TOKENS tokens. LANES is at most the
// subgroup's size, and HOLD at most LANES.
layout(local_size_x = 8, local_size_x_id = 0) in;
layout(constant_id = 0) const uint LANES = 8;
layout(constant_id = 1) const uint PER_WORD = 1;  // 1: fp32, 2: fp16, and k is even
layout(constant_id = 2) const uint HOLD = 8;
layout(constant_id = 3) const uint ROWS = 8;
layout(constant_id = 4) const uint TOKENS = 4;

layout(set = 0, binding = 0) readonly buffer Words { uint words[]; };  // (rows, k / PER_WORD)
layout(set = 0, binding = 1) readonly buffer X { float x[]; };         // (tokens, k)
layout(set = 0, binding = 2) writeonly buffer Y { float y[]; };        // (tokens, rows)
layout(push_constant) uniform Sizes { uint tokens; uint rows; uint k; };

void main() {
    uint lane = min(gl_SubgroupInvocationID, HOLD - 1), pitch = k / PER_WORD;
    uint top = gl_WorkGroupID.x * ROWS, first = gl_WorkGroupID.y * LANES * TOKENS + gl_LocalInvocationID.x;
    uint starts[TOKENS];  // the last token and row again, instead of what lies outside
    float sums[TOKENS * ROWS];
    [[unroll]] for (uint t = 0; t < TOKENS; t++) starts[t] = min(first + t * LANES, tokens - 1) * k;
    [[unroll]] for (uint e = 0; e < TOKENS * ROWS; e++) sums[e] = 0.0;
    for (uint start = 0; start < pitch; start += HOLD) {
        vec2 held[ROWS];
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            uint word = start + lane < pitch ? words[min(top + r, rows - 1) * pitch + start + lane] : 0u;
            held[r] = PER_WORD == 1 ? vec2(uintBitsToFloat(word), 0.0) : unpackHalf2x16(word);
        }
        [[unroll]] for (uint j = 0; j < HOLD; j++) {
            uint i = min(start + j, pitch - 1) * PER_WORD;
            [[unroll]] for (uint part = 0; part < PER_WORD; part++) {
                float value[TOKENS];
                [[unroll]] for (uint t = 0; t < TOKENS; t++) value[t] = x[starts[t] + i + part];
                [[unroll]] for (uint r = 0; r < ROWS; r++) {
                    float weight = subgroupShuffle(held[r][part], j);
                    [[unroll]] for (uint t = 0; t < TOKENS; t++) sums[t * ROWS + r] += weight * value[t];
                }
            }
        }
    }
    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
        uint token = first + t * LANES;
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            if (token < tokens && top + r < rows) y[token * rows + top + r] = sums[t * ROWS + r];
        }
    }
}
