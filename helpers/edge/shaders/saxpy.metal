#include <metal_stdlib>
using namespace metal;
// y = alpha * x + y over n fp32 elements; the last threadgroup may be only partly used.

kernel void saxpy(device const float* x [[buffer(0)]],
                  device float* y [[buffer(1)]],
                  constant uint& n [[buffer(2)]],
                  constant float& alpha [[buffer(3)]],
                  uint i [[thread_position_in_grid]]) {
    if (i < n) y[i] = alpha * x[i] + y[i];
}
