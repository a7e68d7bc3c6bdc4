#include <metal_stdlib>
using namespace metal;
// y = x / sqrt(mean(x²) + epsilon) * weight for each row. One threadgroup a row.
#define GROUP 64

kernel void rmsnorm(device const float* x [[buffer(0)]],
                    device const float* weight [[buffer(1)]],
                    device float* y [[buffer(2)]],
                    constant uint& rows [[buffer(3)]],
                    constant uint& columns [[buffer(4)]],
                    constant float& epsilon [[buffer(5)]],
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
    for (uint i = local.x; i < columns; i += GROUP) sum += x[start + i] * x[start + i];
    sum = simd_sum(sum);
    if (simd_is_first()) squares[simdgroup] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    sum = 0.0f;
    for (uint s = 0; s < simdgroups; s++) sum += squares[s];
    float scale = rsqrt(sum / float(columns) + epsilon);
    for (uint i = local.x; i < columns; i += GROUP) y[start + i] = x[start + i] * scale * weight[i];
}
