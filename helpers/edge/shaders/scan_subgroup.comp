#version 450
#extension GL_KHR_shader_subgroup_arithmetic : require
// As scan_tree, but a subgroup scans its own totals, and the first subgroup those of all subgroups,
// as many at a time as it has lanes: two barriers, at any subgroup size.
layout(local_size_x = 128, local_size_x_id = 0) in;
layout(constant_id = 0) const uint GROUP = 128;
layout(constant_id = 1) const uint ITEMS = 4;

layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { float y[]; };
layout(set = 0, binding = 2) writeonly buffer Totals { float totals[]; };
layout(push_constant) uniform Arguments { uint n; };

shared float sums[GROUP];  // enough even for subgroups of one

void main() {
    uint block = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    // Lanes of a subgroup are neighbours in x, whatever place the driver gave them in the workgroup.
    uint place = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    uint first = (block * GROUP + place) * ITEMS;
    if (block * GROUP * ITEMS >= n) return;  // the same for the whole workgroup
    float own = 0.0;
    for (uint i = first; i < min(first + ITEMS, n); i++) own += x[i];
    float before = subgroupExclusiveAdd(own);
    float whole = subgroupAdd(own);
    if (subgroupElect()) sums[gl_SubgroupID] = whole;
    barrier();
    if (gl_SubgroupID == 0) {
        float carry = 0.0;
        for (uint start = 0; start < gl_NumSubgroups; start += gl_SubgroupSize) {
            uint s = start + gl_SubgroupInvocationID;
            float value = s < gl_NumSubgroups ? sums[s] : 0.0;
            float left = carry + subgroupExclusiveAdd(value);
            if (s < gl_NumSubgroups) sums[s] = left;
            carry += subgroupAdd(value);
        }
        if (subgroupElect()) totals[block] = carry;
    }
    barrier();
    float sum = sums[gl_SubgroupID] + before;
    for (uint i = first; i < min(first + ITEMS, n); i++) {
        sum += x[i];
        y[i] = sum;
    }
}
