#include <metal_stdlib>
using namespace metal;
// Attention of new tokens: each of `heads` queries of a token over its n keys in a cache, which end with its
// own: those behind it are never read. HEADS queries share a key head, and a threadgroup serves them together, so
// that every key and value is read once a token. Its simdgroups take the keys in turns, lanes lie along the head's
// elements, and each simdgroup keeps the largest score, the sum and the weighted values so far; at the end these
// are merged.
#define HEADS 1  // queries of a key head
#define SIZE 64  // elements of a head
#define PIECES 16  // elements of a lane: SIZE / simdgroup size, at least
#define SUBGROUPS 8  // simdgroups of a threadgroup, at most

constant float LOWEST = -3.4028234e38f;

kernel void attention_decode(device const float* q [[buffer(0)]],       // (tokens, key heads, HEADS, SIZE)
                             device const float* keys [[buffer(1)]],    // (capacity, key heads, SIZE)
                             device const float* values [[buffer(2)]],  // (capacity, key heads, SIZE)
                             device const uint* keys_here [[buffer(3)]],
                             device float* y [[buffer(4)]],  // (tokens, key heads, HEADS, SIZE)
                             constant uint& capacity [[buffer(5)]],
                             constant float& scale [[buffer(6)]],
                             uint2 group [[threadgroup_position_in_grid]],
                             uint2 groups [[threadgroups_per_grid]],
                             uint2 position [[thread_position_in_threadgroup]],
                             uint2 size [[threads_per_threadgroup]],
                             uint lane [[thread_index_in_simdgroup]],
                             uint lanes [[threads_per_simdgroup]],
                             uint simdgroup [[simdgroup_index_in_threadgroup]],
                             uint simdgroups [[simdgroups_per_threadgroup]]) {
    threadgroup float peaks[SUBGROUPS][HEADS];
    threadgroup float sums[SUBGROUPS][HEADS];
    threadgroup float parts[SUBGROUPS][HEADS][SIZE];
    uint key_head = group.x, key_heads = groups.x, token = group.y;
    uint n = min(keys_here[0], capacity) - (groups.y - 1 - token);
    uint here = (token * key_heads + key_head) * HEADS * SIZE;
    float query[HEADS * PIECES], part[HEADS * PIECES], peak[HEADS], sum[HEADS];
    for (uint h = 0; h < HEADS; h++) {
        peak[h] = LOWEST;
        sum[h] = 0.0f;
        for (uint p = 0; p < PIECES; p++) {
            uint d = p * lanes + lane;
            query[h * PIECES + p] = d < SIZE ? scale * q[here + h * SIZE + d] : 0.0f;
            part[h * PIECES + p] = 0.0f;
        }
    }
    for (uint key = simdgroup; key < n; key += simdgroups) {
        uint start = (key * key_heads + key_head) * SIZE;
        float score[HEADS], weight[HEADS];
        for (uint h = 0; h < HEADS; h++) score[h] = 0.0f;
        for (uint p = 0; p < PIECES; p++) {
            uint d = p * lanes + lane;
            float element = d < SIZE ? keys[start + d] : 0.0f;
            for (uint h = 0; h < HEADS; h++) score[h] += query[h * PIECES + p] * element;
        }
        for (uint h = 0; h < HEADS; h++) {
            score[h] = simd_sum(score[h]);
            float high = max(peak[h], score[h]), keep = exp(peak[h] - high);
            weight[h] = exp(score[h] - high);
            peak[h] = high;
            sum[h] = sum[h] * keep + weight[h];
            for (uint p = 0; p < PIECES; p++) part[h * PIECES + p] *= keep;
        }
        for (uint p = 0; p < PIECES; p++) {
            uint d = p * lanes + lane;
            float element = d < SIZE ? values[start + d] : 0.0f;
            for (uint h = 0; h < HEADS; h++) part[h * PIECES + p] += weight[h] * element;
        }
    }
    for (uint h = 0; h < HEADS; h++) {
        if (simd_is_first()) {
            peaks[simdgroup][h] = peak[h];
            sums[simdgroup][h] = sum[h];
        }
        for (uint p = 0; p < PIECES; p++) {
            uint d = p * lanes + lane;
            if (d < SIZE) parts[simdgroup][h][d] = part[h * PIECES + p];
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint e = position.x; e < HEADS * SIZE; e += size.x) {
        uint h = e / SIZE, d = e % SIZE;
        float high = LOWEST, total = 0.0f, whole = 0.0f;
        for (uint s = 0; s < simdgroups; s++) high = max(high, peaks[s][h]);
        for (uint s = 0; s < simdgroups; s++) {
            float keep = exp(peaks[s][h] - high);
            total += keep * sums[s][h];
            whole += keep * parts[s][h][d];
        }
        y[here + e] = whole / total;
    }
}
