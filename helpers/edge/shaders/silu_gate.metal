#include <metal_stdlib>
using namespace metal;
// y = silu(gate) * up with up and gate side by side in x, or silu(up) where GATED is 0.
#define GATED 1

kernel void silu_gate(device const float* x [[buffer(0)]],  // up (n), then gate (n) where there is one
                      device float* y [[buffer(1)]],
                      constant uint& n [[buffer(2)]],
                      uint i [[thread_position_in_grid]]) {
    if (i >= n) return;
    float before = x[GATED * n + i];
    float after = before / (1.0f + exp(min(-before, 80.0f)));
    y[i] = GATED == 1 ? after * x[i] : after;
}
