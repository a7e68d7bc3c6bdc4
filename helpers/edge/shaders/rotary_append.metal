#include <metal_stdlib>
using namespace metal;
// Queries, keys and values of one new token, projected side by side: the queries go to q, keys and values
// to the end of their caches. Where ROTARY is 1, each pair (i, i + SIZE / 2) of a query or key is turned
// by the angle of its position, from a table that the host computed.
#define ROTARY 1

kernel void rotary_append(device const float* turns [[buffer(0)]],      // (capacity, size / 2, 2)
                          device const float* projected [[buffer(1)]],  // (heads + 2 key heads, size)
                          device const uint* keys_here [[buffer(2)]],   // tokens with this one
                          device float* q [[buffer(3)]],                // (heads, size)
                          device float* keys [[buffer(4)]],             // (capacity, key heads, size)
                          device float* values [[buffer(5)]],           // (capacity, key heads, size)
                          constant uint& heads [[buffer(6)]],
                          constant uint& key_heads [[buffer(7)]],
                          constant uint& size [[buffer(8)]],
                          constant uint& capacity [[buffer(9)]],
                          uint e [[thread_position_in_grid]]) {
    uint head = e / size, d = e % size;
    if (head >= heads + 2 * key_heads) return;
    uint place = min(keys_here[0], capacity) - 1;
    float value = projected[e];
    if (ROTARY == 1 && head < heads + key_heads) {
        uint half_size = size / 2, at = 2 * (place * half_size + d % half_size);
        float along = value * turns[at];
        if (d < half_size) {
            value = along - projected[e + half_size] * turns[at + 1];
        } else {
            value = along + projected[e - half_size] * turns[at + 1];
        }
    }
    uint start = place * key_heads * size;
    if (head < heads) {
        q[e] = value;
    } else if (head < heads + key_heads) {
        keys[start + e - heads * size] = value;
    } else {
        values[start + e - (heads + key_heads) * size] = value;
    }
}
