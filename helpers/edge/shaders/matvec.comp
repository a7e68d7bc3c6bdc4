#version 450
#extension GL_EXT_control_flow_attributes : require
// y (rows) = W (rows, k) · x (k) with W row-major in fp32, or in fp16 with two values in a word, which
// needs no 16-bit storage. LANES invocations lie along k and share ROWS rows, which share what is read
// of x; PARTS of these lie in a workgroup. Lane sums are added in a fixed order, the same everywhere.
layout(local_size_x = 16, local_size_y = 4, local_size_x_id = 0, local_size_y_id = 1) in;
layout(constant_id = 0) const uint LANES = 16;
layout(constant_id = 1) const uint PARTS = 4;
layout(constant_id = 2) const uint PER_WORD = 1;  // 1: fp32, 2: fp16, and k is even
layout(constant_id = 3) const uint ROWS = 4;

layout(set = 0, binding = 0) readonly buffer Words { uint words[]; };  // (rows, k / PER_WORD)
layout(set = 0, binding = 1) readonly buffer X { float x[]; };
layout(set = 0, binding = 2) writeonly buffer Y { float y[]; };
layout(push_constant) uniform Sizes { uint rows; uint k; };

shared float sums[PARTS][ROWS][LANES];

void main() {
    uint lane = gl_LocalInvocationID.x, part = gl_LocalInvocationID.y;
    uint first = (gl_WorkGroupID.x * PARTS + part) * ROWS, pitch = k / PER_WORD;
    float own[ROWS];
    [[unroll]] for (uint r = 0; r < ROWS; r++) own[r] = 0.0;
    for (uint w = lane; w < pitch; w += LANES) {
        float left = x[PER_WORD * w], right = PER_WORD == 2 ? x[2 * w + 1] : 0.0;
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            uint word = words[min(first + r, rows - 1) * pitch + w];
            if (PER_WORD == 1) {
                own[r] += uintBitsToFloat(word) * left;
            } else {
                vec2 pair = unpackHalf2x16(word);
                own[r] += pair.x * left;
                own[r] += pair.y * right;
            }
        }
    }
    [[unroll]] for (uint r = 0; r < ROWS; r++) sums[part][r][lane] = own[r];
    barrier();
    for (uint r = lane; r < ROWS; r += LANES) {
        float sum = 0.0;
        for (uint l = 0; l < LANES; l++) sum += sums[part][r][l];
        if (first + r < rows) y[first + r] = sum;
    }
}
