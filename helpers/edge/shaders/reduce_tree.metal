#include <metal_stdlib>
using namespace metal;
// One value from n fp32 values: each threadgroup leaves one partial value, and a second dispatch over
// those ends it. Threads stride over x, then half of them at a time fold the other half in.
#define GROUP 128  // a power of two
#define OPERATION 0  // 0: sum, 1: maximum

inline float both(float a, float b) { return OPERATION == 0 ? a + b : max(a, b); }

kernel void reduce_tree(device const float* x [[buffer(0)]],
                        device float* partials [[buffer(1)]],
                        constant uint& n [[buffer(2)]],
                        uint at [[thread_position_in_grid]],
                        uint lane [[thread_position_in_threadgroup]],
                        uint group [[threadgroup_position_in_grid]],
                        uint groups [[threadgroups_per_grid]]) {
    threadgroup float parts[GROUP];
    float own = OPERATION == 0 ? 0.0f : -INFINITY;
    for (uint i = at; i < n; i += groups * GROUP) own = both(own, x[i]);
    parts[lane] = own;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint half_group = GROUP / 2; half_group > 0; half_group /= 2) {
        if (lane < half_group) parts[lane] = both(parts[lane], parts[lane + half_group]);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (lane == 0) partials[group] = parts[0];
}
