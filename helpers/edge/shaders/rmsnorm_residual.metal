#include <metal_stdlib>
using namespace metal;
// residual += x, then y = residual / sqrt(mean(residual²) + epsilon) * weight for each row: one
// kernel instead of two saves a write and a read of the whole residual. One threadgroup a row.
#define GROUP 64

kernel void rmsnorm_residual(device const float* x [[buffer(0)]],
                             device float* residual [[buffer(1)]],
                             device const float* weight [[buffer(2)]],
                             device float* y [[buffer(3)]],
                             constant uint& rows [[buffer(4)]],
                             constant uint& columns [[buffer(5)]],
                             constant float& epsilon [[buffer(6)]],
                             uint2 local [[thread_position_in_threadgroup]],
                             uint2 group [[threadgroup_position_in_grid]],
                             uint2 groups [[threadgroups_per_grid]],
                             uint simdgroup [[simdgroup_index_in_threadgroup]],
                             uint simdgroups [[simdgroups_per_threadgroup]]) {
    threadgroup float squares[GROUP];
    uint row = group.y * groups.x + group.x;
    if (row >= rows) return;  // the same for the whole threadgroup
    uint start = row * columns;
    float sum = 0.0f;
    for (uint i = local.x; i < columns; i += GROUP) {
        float value = residual[start + i] + x[start + i];
        residual[start + i] = value;
        sum += value * value;
    }
    sum = simd_sum(sum);
    if (simd_is_first()) squares[simdgroup] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    sum = 0.0f;
    for (uint s = 0; s < simdgroups; s++) sum += squares[s];
    float scale = rsqrt(sum / float(columns) + epsilon);
    // Each thread reads only what it wrote itself, so no barrier is needed for the residual.
    for (uint i = local.x; i < columns; i += GROUP) {
        y[start + i] = residual[start + i] * scale * weight[i];
    }
}
