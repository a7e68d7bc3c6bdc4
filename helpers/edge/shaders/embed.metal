#include <metal_stdlib>
using namespace metal;
// y = the rows of tokens in a table, plus the rows of their positions in another where POSITIONS is 1.
#define POSITIONS 1

kernel void embed(device const float* table [[buffer(0)]],   // (vocabulary, width)
                  device const float* places [[buffer(1)]],  // (context, width)
                  device const uint* token [[buffer(2)]],
                  device const uint* keys_here [[buffer(3)]],  // tokens with these
                  device float* y [[buffer(4)]],  // (tokens, width)
                  constant uint& width [[buffer(5)]],
                  constant uint& tokens [[buffer(6)]],
                  uint e [[thread_position_in_grid]]) {
    uint t = e / width, i = e % width;
    if (t >= tokens) return;
    float value = table[token[t] * width + i];
    if (POSITIONS == 1) value += places[(keys_here[0] - tokens + t) * width + i];
    y[e] = value;
}
