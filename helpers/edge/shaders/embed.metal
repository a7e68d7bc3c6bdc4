#include <metal_stdlib>
using namespace metal;
// y = the row of a token in a table, plus the row of its position in another where POSITIONS is 1.
#define POSITIONS 1

kernel void embed(device const float* table [[buffer(0)]],   // (vocabulary, width)
                  device const float* places [[buffer(1)]],  // (context, width)
                  device const uint* token [[buffer(2)]],
                  device const uint* keys_here [[buffer(3)]],  // tokens with this one
                  device float* y [[buffer(4)]],
                  constant uint& width [[buffer(5)]],
                  uint i [[thread_position_in_grid]]) {
    if (i >= width) return;
    float value = table[token[0] * width + i];
    if (POSITIONS == 1) value += places[(keys_here[0] - 1) * width + i];
    y[i] = value;
}
