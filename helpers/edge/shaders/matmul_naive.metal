#include <metal_stdlib>
using namespace metal;
// C (M, N) = A (M, K) · B (K, N), row-major fp32. Each thread computes one element of C, and reads a
// row of A and a column of B for it: two loads for each multiply-add.

kernel void matmul_naive(device const float* a [[buffer(0)]],
                         device const float* b [[buffer(1)]],
                         device float* c [[buffer(2)]],
                         constant uint& m [[buffer(3)]],
                         constant uint& n [[buffer(4)]],
                         constant uint& k [[buffer(5)]],
                         uint2 at [[thread_position_in_grid]]) {
    uint row = at.y, column = at.x;
    if (row >= m || column >= n) return;
    float sum = 0.0f;
    for (uint i = 0; i < k; i++) sum += a[row * k + i] * b[i * n + column];
    c[row * n + column] = sum;
}
