#include <metal_stdlib>
using namespace metal;
// y (rows) = W (rows, k) · x (k) with W in unsigned BITS-bit integers, 32 / BITS of them in a word.
// GROUP neighbours along k share a scale and a zero, which are the two fp16 halves of one word:
// w = scale * (q - zero). Words and scales of neighbouring rows are neighbours in memory, so that
// the lanes, which take a row each, read neighbours. PARTS threads share the groups of a row.
#define LANES 32
#define PARTS 4
#define BITS 4  // 4 or 8
#define GROUP 32  // a multiple of 32 / BITS
#define ROWS 2  // of one thread: they share what it reads of x

constant constexpr uint PER_WORD = 32 / BITS, WORDS = GROUP / PER_WORD, MASK = (1u << BITS) - 1u;

kernel void dequant_matvec(device const uint* words [[buffer(0)]],   // (k / PER_WORD, rows)
                           device const uint* scales [[buffer(1)]],  // (k / GROUP, rows)
                           device const float* x [[buffer(2)]],
                           device float* y [[buffer(3)]],
                           constant uint& rows [[buffer(4)]],
                           constant uint& k [[buffer(5)]],
                           uint2 local [[thread_position_in_threadgroup]],
                           uint2 threadgroup_at [[threadgroup_position_in_grid]]) {
    threadgroup float sums[PARTS][ROWS][LANES];
    uint lane = local.x, part = local.y;
    uint first = threadgroup_at.x * LANES * ROWS + lane;
    float own[ROWS];
    for (uint r = 0; r < ROWS; r++) own[r] = 0.0f;
    for (uint group = part; group * GROUP < k; group += PARTS) {
        float inner[ROWS];
        float2 scale_zero[ROWS];
        for (uint r = 0; r < ROWS; r++) {
            uint row = first + r * LANES;
            scale_zero[r] = row < rows ? float2(as_type<half2>(scales[group * rows + row])) : float2(0.0f);
            inner[r] = 0.0f;
        }
        for (uint w = 0; w < WORDS; w++) {
            uint word[ROWS];
            for (uint r = 0; r < ROWS; r++) {
                uint row = first + r * LANES;
                word[r] = row < rows ? words[(group * WORDS + w) * rows + row] : 0u;
            }
            for (uint j = 0; j < PER_WORD; j++) {
                uint i = group * GROUP + w * PER_WORD + j;
                float value = i < k ? x[i] : 0.0f;
                for (uint r = 0; r < ROWS; r++) {
                    inner[r] += (float(word[r] >> (BITS * j) & MASK) - scale_zero[r].y) * value;
                }
            }
        }
        for (uint r = 0; r < ROWS; r++) own[r] += scale_zero[r].x * inner[r];
    }
    for (uint r = 0; r < ROWS; r++) sums[part][r][lane] = own[r];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (part != 0) return;
    for (uint r = 0; r < ROWS; r++) {
        float sum = 0.0f;
        for (uint p = 0; p < PARTS; p++) sum += sums[p][r][lane];
        if (first + r * LANES < rows) y[first + r * LANES] = sum;
    }
}
