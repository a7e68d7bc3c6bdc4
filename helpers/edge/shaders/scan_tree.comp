#version 450
// Inclusive sums of blocks of GROUP * ITEMS fp32 values, and the total of each block. An invocation
// adds up its ITEMS neighbours, then a tree turns the totals into what stands before each: up-sweep
// and down-sweep do GROUP - 1 additions each, where a naive scan does GROUP * log2(GROUP).
layout(local_size_x = 128, local_size_x_id = 0) in;
layout(constant_id = 0) const uint GROUP = 128;  // a power of two
layout(constant_id = 1) const uint ITEMS = 4;

layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { float y[]; };
layout(set = 0, binding = 2) writeonly buffer Totals { float totals[]; };
layout(push_constant) uniform Arguments { uint n; };

shared float tree[GROUP];

void main() {
    uint lane = gl_LocalInvocationID.x;
    uint block = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    uint first = (block * GROUP + lane) * ITEMS;
    if (block * GROUP * ITEMS >= n) return;  // the same for the whole workgroup
    float own = 0.0;
    for (uint i = first; i < min(first + ITEMS, n); i++) own += x[i];
    tree[lane] = own;
    barrier();
    for (uint step = 1; step < GROUP; step *= 2) {
        uint i = (lane + 1) * step * 2 - 1;
        if (i < GROUP) tree[i] += tree[i - step];
        barrier();
    }
    if (lane == 0) {
        totals[block] = tree[GROUP - 1];
        tree[GROUP - 1] = 0.0;
    }
    barrier();
    for (uint step = GROUP / 2; step > 0; step /= 2) {
        uint i = (lane + 1) * step * 2 - 1;
        if (i < GROUP) {
            float left = tree[i - step];
            tree[i - step] = tree[i];
            tree[i] += left;
        }
        barrier();
    }
    float sum = tree[lane];
    for (uint i = first; i < min(first + ITEMS, n); i++) {
        sum += x[i];
        y[i] = sum;
    }
}
