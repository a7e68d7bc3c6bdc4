#include <metal_stdlib>
using namespace metal;
// Softmax of each row in two passes over it instead of three: a thread keeps the largest value so far
// and the sum of exponentials relative to it, and corrects the sum when a larger value comes
// (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018). One threadgroup a row.
#define GROUP 64

constant float LOWEST = -3.4028234e38f;  // finite: Metal's fast mode may assume that nothing is infinite

kernel void softmax(device const float* x [[buffer(0)]],
                    device float* y [[buffer(1)]],
                    constant uint& rows [[buffer(2)]],
                    constant uint& columns [[buffer(3)]],
                    uint2 local [[thread_position_in_threadgroup]],
                    uint2 group [[threadgroup_position_in_grid]],
                    uint2 groups [[threadgroups_per_grid]],
                    uint simdgroup [[simdgroup_index_in_threadgroup]],
                    uint simdgroups [[simdgroups_per_threadgroup]]) {
    threadgroup float peaks[GROUP];
    threadgroup float sums[GROUP];
    uint row = group.y * groups.x + group.x;
    if (row >= rows) return;  // the same for the whole threadgroup
    uint start = row * columns;
    float peak = LOWEST, sum = 0.0f;
    for (uint i = local.x; i < columns; i += GROUP) {
        float value = x[start + i];
        if (value > peak) {
            sum *= exp(peak - value);
            peak = value;
        }
        sum += exp(value - peak);
    }
    float high = simd_max(peak);
    sum = simd_sum(sum * exp(peak - high));
    if (simd_is_first()) {
        peaks[simdgroup] = high;
        sums[simdgroup] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    peak = LOWEST;
    for (uint s = 0; s < simdgroups; s++) peak = max(peak, peaks[s]);
    sum = 0.0f;
    for (uint s = 0; s < simdgroups; s++) sum += sums[s] * exp(peaks[s] - peak);
    for (uint i = local.x; i < columns; i += GROUP) y[start + i] = exp(x[start + i] - peak) / sum;
}
