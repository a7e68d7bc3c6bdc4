#include <metal_stdlib>
using namespace metal;
// As scan_tree, but a simdgroup scans its own totals, and the first simdgroup those of all simdgroups,
// as many at a time as it has lanes: two barriers, at any simdgroup size.
#define GROUP 128
#define ITEMS 4

kernel void scan_subgroup(device const float* x [[buffer(0)]],
                          device float* y [[buffer(1)]],
                          device float* totals [[buffer(2)]],
                          constant uint& n [[buffer(3)]],
                          uint2 group [[threadgroup_position_in_grid]],
                          uint2 groups [[threadgroups_per_grid]],
                          uint lane [[thread_index_in_simdgroup]],
                          uint lanes [[threads_per_simdgroup]],
                          uint simdgroup [[simdgroup_index_in_threadgroup]],
                          uint simdgroups [[simdgroups_per_threadgroup]]) {
    threadgroup float sums[GROUP];  // enough even for simdgroups of one
    uint block = group.y * groups.x + group.x;
    // Lanes of a simdgroup are neighbours in x.
    uint place = simdgroup * lanes + lane;
    uint first = (block * GROUP + place) * ITEMS;
    if (block * GROUP * ITEMS >= n) return;  // the same for the whole threadgroup
    float own = 0.0f;
    for (uint i = first; i < min(first + ITEMS, n); i++) own += x[i];
    float before = simd_prefix_exclusive_sum(own);
    float whole = simd_sum(own);
    if (simd_is_first()) sums[simdgroup] = whole;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup == 0) {
        float carry = 0.0f;
        for (uint start = 0; start < simdgroups; start += lanes) {
            uint s = start + lane;
            float value = s < simdgroups ? sums[s] : 0.0f;
            float left = carry + simd_prefix_exclusive_sum(value);
            if (s < simdgroups) sums[s] = left;
            carry += simd_sum(value);
        }
        if (simd_is_first()) totals[block] = carry;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float sum = sums[simdgroup] + before;
    for (uint i = first; i < min(first + ITEMS, n); i++) {
        sum += x[i];
        y[i] = sum;
    }
}
