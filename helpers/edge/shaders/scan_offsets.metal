#include <metal_stdlib>
using namespace metal;
// Adds to each block of `block` values what all blocks before it sum to.

kernel void scan_offsets(device const float* sums [[buffer(0)]],  // inclusive, of whole blocks
                         device float* y [[buffer(1)]],
                         constant uint& n [[buffer(2)]],
                         constant uint& block [[buffer(3)]],
                         uint2 local [[thread_position_in_threadgroup]],
                         uint2 size [[threads_per_threadgroup]],
                         uint2 at [[threadgroup_position_in_grid]],
                         uint2 groups [[threadgroups_per_grid]]) {
    uint group = at.y * groups.x + at.x;
    uint i = group * size.x + local.x;
    if (i < n && i >= block) y[i] += sums[i / block - 1];
}
