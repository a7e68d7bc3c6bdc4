#version 450
#extension GL_EXT_control_flow_attributes : require
// y (rows) = W (rows, k) · x (k) with W in unsigned BITS-bit integers, 32 / BITS of them in a word.
// GROUP neighbours along k share a scale and a zero, which are the two fp16 halves of one word:
// w = scale * (q - zero). Words and scales of neighbouring rows are neighbours in memory, so that
// the lanes, which take a row each, read neighbours. PARTS invocations share the groups of a row.
layout(local_size_x = 32, local_size_y = 4, local_size_x_id = 0, local_size_y_id = 1) in;
layout(constant_id = 0) const uint LANES = 32;
layout(constant_id = 1) const uint PARTS = 4;
layout(constant_id = 2) const uint BITS = 4;    // 4 or 8
layout(constant_id = 3) const uint GROUP = 32;  // a multiple of 32 / BITS
layout(constant_id = 4) const uint ROWS = 2;    // of one invocation: they share what it reads of x

layout(set = 0, binding = 0) readonly buffer Words { uint words[]; };    // (k / PER_WORD, rows)
layout(set = 0, binding = 1) readonly buffer Scales { uint scales[]; };  // (k / GROUP, rows)
layout(set = 0, binding = 2) readonly buffer X { float x[]; };
layout(set = 0, binding = 3) writeonly buffer Y { float y[]; };
layout(push_constant) uniform Sizes { uint rows; uint k; };

const uint PER_WORD = 32 / BITS, WORDS = GROUP / PER_WORD, MASK = (1u << BITS) - 1u;
shared float sums[PARTS][ROWS][LANES];

void main() {
    uint lane = gl_LocalInvocationID.x, part = gl_LocalInvocationID.y;
    uint first = gl_WorkGroupID.x * LANES * ROWS + lane;
    float own[ROWS];
    [[unroll]] for (uint r = 0; r < ROWS; r++) own[r] = 0.0;
    for (uint group = part; group * GROUP < k; group += PARTS) {
        float inner[ROWS];
        vec2 scale_zero[ROWS];
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            uint row = first + r * LANES;
            scale_zero[r] = row < rows ? unpackHalf2x16(scales[group * rows + row]) : vec2(0.0);
            inner[r] = 0.0;
        }
        for (uint w = 0; w < WORDS; w++) {
            uint word[ROWS];
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                uint row = first + r * LANES;
                word[r] = row < rows ? words[(group * WORDS + w) * rows + row] : 0u;
            }
            [[unroll]] for (uint j = 0; j < PER_WORD; j++) {
                uint i = group * GROUP + w * PER_WORD + j;
                float value = i < k ? x[i] : 0.0;
                [[unroll]] for (uint r = 0; r < ROWS; r++) {
                    inner[r] += (float(word[r] >> (BITS * j) & MASK) - scale_zero[r].y) * value;
                }
            }
        }
        [[unroll]] for (uint r = 0; r < ROWS; r++) own[r] += scale_zero[r].x * inner[r];
    }
    [[unroll]] for (uint r = 0; r < ROWS; r++) sums[part][r][lane] = own[r];
    barrier();
    if (part != 0) return;
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        float sum = 0.0;
        for (uint p = 0; p < PARTS; p++) sum += sums[p][r][lane];
        if (first + r * LANES < rows) y[first + r * LANES] = sum;
    }
}
