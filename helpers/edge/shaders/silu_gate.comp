#version 450
// y = silu(gate) * up for each row, with up and gate side by side in x, or silu(up) where GATED is 0.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint GATED = 1;

layout(set = 0, binding = 0) readonly buffer X { float x[]; };  // (rows, up (n), then gate (n) where there is one)
layout(set = 0, binding = 1) writeonly buffer Y { float y[]; };          // (rows, n)
layout(push_constant) uniform Sizes { uint n; uint rows; };

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i >= n * rows) return;
    uint at = i / n * (1 + GATED) * n + i % n;
    float before = x[at + GATED * n];
    // The exponential stays finite: what a device does with infinity is its own affair.
    float after = before / (1.0 + exp(min(-before, 80.0)));
    y[i] = GATED == 1 ? after * x[at] : after;
}
