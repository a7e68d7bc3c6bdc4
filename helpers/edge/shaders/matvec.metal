#include <metal_stdlib>
using namespace metal;
// y (rows) = W (rows, k) · x (k) with W row-major in fp32, or in fp16 with two values in a word. LANES
// threads lie along k and share ROWS rows, which share what is read of x; PARTS of these lie in a
// threadgroup. Lane sums are added in a fixed order, the same everywhere.
#define LANES 16
#define PARTS 4
#define PER_WORD 1  // 1: fp32, 2: fp16, and k is even
#define ROWS 4

kernel void matvec(device const uint* words [[buffer(0)]],  // (rows, k / PER_WORD)
                   device const float* x [[buffer(1)]],
                   device float* y [[buffer(2)]],
                   constant uint& rows [[buffer(3)]],
                   constant uint& k [[buffer(4)]],
                   uint2 local [[thread_position_in_threadgroup]],
                   uint2 group [[threadgroup_position_in_grid]]) {
    threadgroup float sums[PARTS][ROWS][LANES];
    uint lane = local.x, part = local.y;
    uint first = (group.x * PARTS + part) * ROWS, pitch = k / PER_WORD;
    float own[ROWS];
    for (uint r = 0; r < ROWS; r++) own[r] = 0.0f;
    for (uint w = lane; w < pitch; w += LANES) {
        float left = x[PER_WORD * w], right = PER_WORD == 2 ? float(x[2 * w + 1]) : 0.0f;
        for (uint r = 0; r < ROWS; r++) {
            uint word = words[min(first + r, rows - 1) * pitch + w];
            if (PER_WORD == 1) {
                own[r] += as_type<float>(word) * left;
            } else {
                float2 pair = float2(as_type<half2>(word));
                own[r] += pair.x * left;
                own[r] += pair.y * right;
            }
        }
    }
    for (uint r = 0; r < ROWS; r++) sums[part][r][lane] = own[r];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint r = lane; r < ROWS; r += LANES) {
        float sum = 0.0f;
        for (uint l = 0; l < LANES; l++) sum += sums[part][r][l];
        if (first + r < rows) y[first + r] = sum;
    }
}
