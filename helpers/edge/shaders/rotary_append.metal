#include <metal_stdlib>
using namespace metal;
// Queries, keys and values of new tokens, projected side by side: the queries go to q, keys and values
// to the end of their caches. Where ROTARY is 1, each pair (i, i + SIZE / 2) of a query or key is turned
// by the angle of its position, from a table that the host computed.
#define ROTARY 1

kernel void rotary_append(device const float* turns [[buffer(0)]],      // (capacity, size / 2, 2)
                          device const float* projected [[buffer(1)]],  // (tokens, heads + 2 key heads, size)
                          device const uint* keys_here [[buffer(2)]],   // tokens with these
                          device float* q [[buffer(3)]],                // (tokens, heads, size)
                          device float* keys [[buffer(4)]],             // (capacity, key heads, size)
                          device float* values [[buffer(5)]],           // (capacity, key heads, size)
                          constant uint& heads [[buffer(6)]],
                          constant uint& key_heads [[buffer(7)]],
                          constant uint& size [[buffer(8)]],
                          constant uint& capacity [[buffer(9)]],
                          constant uint& tokens [[buffer(10)]],
                          uint e [[thread_position_in_grid]]) {
    uint once = (heads + 2 * key_heads) * size, t = e / once, at_token = e % once;
    uint head = at_token / size, d = at_token % size;
    if (t >= tokens) return;
    uint place = min(keys_here[0], capacity) - tokens + t;
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
        q[t * heads * size + at_token] = value;
    } else if (head < heads + key_heads) {
        keys[start + at_token - heads * size] = value;
    } else {
        values[start + at_token - (heads + key_heads) * size] = value;
    }
}
