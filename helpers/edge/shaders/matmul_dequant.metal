#include <metal_stdlib>
using namespace metal;
// Y (tokens, rows) = X (tokens, k) · Wᵀ with W (rows, k) in unsigned BITS-bit integers, laid out as in
// dequant_matvec. Lanes are rows, ROWS of them each; a value is dequantised once for TOKENS tokens. The lanes
// hold HOLD neighbours along k of each of these tokens, one load a token, and pass them round. LANES is at
// most the simdgroup's size; HOLD, a power of two, is at most LANES and divides GROUP.
#define LANES 8
#define BITS 4  // 4 or 8
#define GROUP 32  // a multiple of 32 / BITS
#define HOLD 8
#define ROWS 4
#define TOKENS 16

constant constexpr uint PER_WORD = 32 / BITS, MASK = (1u << BITS) - 1u;
constant constexpr uint STRIDE = HOLD < PER_WORD ? HOLD : PER_WORD;  // values of a word that one hold covers

kernel void matmul_dequant(device const uint* words [[buffer(0)]],   // (k / PER_WORD, rows)
                           device const uint* scales [[buffer(1)]],  // (k / GROUP, rows)
                           device const float* x [[buffer(2)]],      // (tokens, k)
                           device float* y [[buffer(3)]],            // (tokens, rows)
                           constant uint& tokens [[buffer(4)]],
                           constant uint& rows [[buffer(5)]],
                           constant uint& k [[buffer(6)]],
                           uint2 local [[thread_position_in_threadgroup]],
                           uint2 threadgroup_at [[threadgroup_position_in_grid]],
                           uint own [[thread_index_in_simdgroup]]) {
    uint lane = min(own, uint(HOLD - 1));
    uint top = threadgroup_at.y * TOKENS, left = threadgroup_at.x * LANES * ROWS + local.x;
    uint starts[TOKENS], columns[ROWS];  // the last token and row again, instead of what lies outside
    float sums[TOKENS * ROWS];
    for (uint t = 0; t < TOKENS; t++) starts[t] = min(top + t, tokens - 1) * k;
    for (uint r = 0; r < ROWS; r++) columns[r] = min(left + r * LANES, rows - 1);
    for (uint e = 0; e < TOKENS * ROWS; e++) sums[e] = 0.0f;
    for (uint group = 0; group * GROUP < k; group++) {
        float2 scale_zero[ROWS];
        for (uint r = 0; r < ROWS; r++) scale_zero[r] = float2(as_type<half2>(scales[group * rows + columns[r]]));
        for (uint start = group * GROUP; start < (group + 1) * GROUP; start += HOLD) {
            float held[TOKENS];
            for (uint t = 0; t < TOKENS; t++) held[t] = start + lane < k ? x[starts[t] + start + lane] : 0.0f;
            for (uint j = 0; j < HOLD; j += STRIDE) {
                uint word[ROWS];
                for (uint r = 0; r < ROWS; r++) {
                    uint found = words[(start + j) / PER_WORD * rows + columns[r]];
                    word[r] = found >> (BITS * ((start + j) % PER_WORD));
                }
                for (uint i = 0; i < STRIDE; i++) {
                    float value[ROWS];
                    for (uint r = 0; r < ROWS; r++) {
                        value[r] = scale_zero[r].x * (float(word[r] >> (BITS * i) & MASK) - scale_zero[r].y);
                    }
                    for (uint t = 0; t < TOKENS; t++) {
                        float passed = simd_shuffle(held[t], ushort(j + i));
                        for (uint r = 0; r < ROWS; r++) sums[t * ROWS + r] += passed * value[r];
                    }
                }
            }
        }
    }
    for (uint t = 0; t < TOKENS; t++) {
        for (uint r = 0; r < ROWS; r++) {
            uint token = top + t, row = left + r * LANES;
            if (token < tokens && row < rows) y[token * rows + row] = sums[t * ROWS + r];
        }
    }
}
