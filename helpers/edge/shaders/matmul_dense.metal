#include <metal_stdlib>
using namespace metal;
// Y (tokens, rows) = X (tokens, k) · Wᵀ with W (rows, k) row-major in fp32, or in fp16 with two values in a
// word. Lanes are tokens, TOKENS of them each. They hold HOLD neighbouring words of each of ROWS rows of W,
// one load a row, and pass them round, so that W is read once for LANES * TOKENS tokens. LANES is at most the
// simdgroup's size, and HOLD at most LANES.
#define LANES 8
#define PER_WORD 1  // 1: fp32, 2: fp16, and k is even
#define HOLD 8
#define ROWS 8
#define TOKENS 4

kernel void matmul_dense(device const uint* words [[buffer(0)]],  // (rows, k / PER_WORD)
                         device const float* x [[buffer(1)]],     // (tokens, k)
                         device float* y [[buffer(2)]],           // (tokens, rows)
                         constant uint& tokens [[buffer(3)]],
                         constant uint& rows [[buffer(4)]],
                         constant uint& k [[buffer(5)]],
                         uint2 local [[thread_position_in_threadgroup]],
                         uint2 group [[threadgroup_position_in_grid]],
                         uint own [[thread_index_in_simdgroup]]) {
    uint lane = min(own, uint(HOLD - 1)), pitch = k / PER_WORD;
    uint top = group.x * ROWS, first = group.y * LANES * TOKENS + local.x;
    uint starts[TOKENS];  // the last token and row again, instead of what lies outside
    float sums[TOKENS * ROWS];
    for (uint t = 0; t < TOKENS; t++) starts[t] = min(first + t * LANES, tokens - 1) * k;
    for (uint e = 0; e < TOKENS * ROWS; e++) sums[e] = 0.0f;
    for (uint start = 0; start < pitch; start += HOLD) {
        float2 held[ROWS];
        for (uint r = 0; r < ROWS; r++) {
            uint word = start + lane < pitch ? words[min(top + r, rows - 1) * pitch + start + lane] : 0u;
            held[r] = PER_WORD == 1 ? float2(as_type<float>(word), 0.0f) : float2(as_type<half2>(word));
        }
        for (uint j = 0; j < HOLD; j++) {
            uint i = min(start + j, pitch - 1) * PER_WORD;
            for (uint part = 0; part < PER_WORD; part++) {
                float value[TOKENS];
                for (uint t = 0; t < TOKENS; t++) value[t] = x[starts[t] + i + part];
                for (uint r = 0; r < ROWS; r++) {
                    float weight = simd_shuffle(held[r][part], ushort(j));
                    for (uint t = 0; t < TOKENS; t++) sums[t * ROWS + r] += weight * value[t];
                }
            }
        }
    }
    for (uint t = 0; t < TOKENS; t++) {
        uint token = first + t * LANES;
        for (uint r = 0; r < ROWS; r++) {
            if (token < tokens && top + r < rows) y[token * rows + top + r] = sums[t * ROWS + r];
        }
    }
}
