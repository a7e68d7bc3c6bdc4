#include <metal_stdlib>
using namespace metal;
// y = silu(gate) * up for each row, with up and gate side by side in x, or silu(up) where GATED is 0.
#define GATED 1

kernel void silu_gate(device const float* x [[buffer(0)]],  // (rows, up (n), then gate (n) where there is one)
                      device float* y [[buffer(1)]],  // (rows, n)
                      constant uint& n [[buffer(2)]],
                      constant uint& rows [[buffer(3)]],
                      uint i [[thread_position_in_grid]]) {
    if (i >= n * rows) return;
    uint at = i / n * (1 + GATED) * n + i % n;
    float before = x[at + GATED * n];
    float after = before / (1.0f + exp(min(-before, 80.0f)));
    y[i] = GATED == 1 ? after * x[at] : after;
}
