#include <metal_stdlib>
using namespace metal;
// As reduce_tree, but the lanes of a simdgroup agree without threadgroup memory: one value a simdgroup
// is left, whatever its size, and the first simdgroup folds those. One barrier instead of log2(GROUP).
#define GROUP 128
#define OPERATION 0  // 0: sum, 1: maximum

inline float both(float a, float b) { return OPERATION == 0 ? a + b : max(a, b); }
inline float all_lanes(float own) { return OPERATION == 0 ? simd_sum(own) : simd_max(own); }

kernel void reduce_subgroup(device const float* x [[buffer(0)]],
                            device float* partials [[buffer(1)]],
                            constant uint& n [[buffer(2)]],
                            uint at [[thread_position_in_grid]],
                            uint group [[threadgroup_position_in_grid]],
                            uint groups [[threadgroups_per_grid]],
                            uint lane [[thread_index_in_simdgroup]],
                            uint lanes [[threads_per_simdgroup]],
                            uint simdgroup [[simdgroup_index_in_threadgroup]],
                            uint simdgroups [[simdgroups_per_threadgroup]]) {
    threadgroup float parts[GROUP];  // enough even for simdgroups of one
    float nothing = OPERATION == 0 ? 0.0f : -INFINITY;
    float own = nothing;
    for (uint i = at; i < n; i += groups * GROUP) own = both(own, x[i]);
    own = all_lanes(own);
    if (simd_is_first()) parts[simdgroup] = own;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup != 0) return;
    own = nothing;
    for (uint s = lane; s < simdgroups; s += lanes) own = both(own, parts[s]);
    own = all_lanes(own);
    if (simd_is_first()) partials[group] = own;
}
