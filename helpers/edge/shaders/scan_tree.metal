#include <metal_stdlib>
using namespace metal;
// Inclusive sums of blocks of GROUP * ITEMS fp32 values, and the total of each block. A thread adds up
// its ITEMS neighbours, then a tree turns the totals into what stands before each: up-sweep and
// down-sweep do GROUP - 1 additions each, where a naive scan does GROUP * log2(GROUP).
#define GROUP 128  // a power of two
#define ITEMS 4

kernel void scan_tree(device const float* x [[buffer(0)]],
                      device float* y [[buffer(1)]],
                      device float* totals [[buffer(2)]],
                      constant uint& n [[buffer(3)]],
                      uint2 local [[thread_position_in_threadgroup]],
                      uint2 group [[threadgroup_position_in_grid]],
                      uint2 groups [[threadgroups_per_grid]]) {
    threadgroup float tree[GROUP];
    uint lane = local.x;
    uint block = group.y * groups.x + group.x;
    uint first = (block * GROUP + lane) * ITEMS;
    if (block * GROUP * ITEMS >= n) return;  // the same for the whole threadgroup
    float own = 0.0f;
    for (uint i = first; i < min(first + ITEMS, n); i++) own += x[i];
    tree[lane] = own;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint step = 1; step < GROUP; step *= 2) {
        uint i = (lane + 1) * step * 2 - 1;
        if (i < GROUP) tree[i] += tree[i - step];
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (lane == 0) {
        totals[block] = tree[GROUP - 1];
        tree[GROUP - 1] = 0.0f;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint step = GROUP / 2; step > 0; step /= 2) {
        uint i = (lane + 1) * step * 2 - 1;
        if (i < GROUP) {
            float left = tree[i - step];
            tree[i - step] = tree[i];
            tree[i] += left;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    float sum = tree[lane];
    for (uint i = first; i < min(first + ITEMS, n); i++) {
        sum += x[i];
        y[i] = sum;
    }
}
