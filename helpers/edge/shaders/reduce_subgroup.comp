#version 450
#extension GL_KHR_shader_subgroup_arithmetic : require
// As reduce_tree, but the lanes of a subgroup agree without shared memory: one value a subgroup is
// left, whatever its size, and the first subgroup folds those. One barrier instead of log2(GROUP).
layout(local_size_x = 128, local_size_x_id = 0) in;
layout(constant_id = 0) const uint GROUP = 128;
layout(constant_id = 1) const uint OPERATION = 0;  // 0: sum, 1: maximum

layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) writeonly buffer Partials { float partials[]; };
layout(push_constant) uniform Arguments { uint n; };

shared float parts[GROUP];  // enough even for subgroups of one

float both(float a, float b) { return OPERATION == 0 ? a + b : max(a, b); }
float all_lanes(float own) { return OPERATION == 0 ? subgroupAdd(own) : subgroupMax(own); }

void main() {
    float nothing = OPERATION == 0 ? 0.0 : uintBitsToFloat(0xFF800000u);
    float own = nothing;
    for (uint i = gl_GlobalInvocationID.x; i < n; i += gl_NumWorkGroups.x * GROUP) own = both(own, x[i]);
    own = all_lanes(own);
    if (subgroupElect()) parts[gl_SubgroupID] = own;
    barrier();
    if (gl_SubgroupID != 0) return;
    own = nothing;
    for (uint s = gl_SubgroupInvocationID; s < gl_NumSubgroups; s += gl_SubgroupSize) own = both(own, parts[s]);
    own = all_lanes(own);
    if (subgroupElect()) partials[gl_WorkGroupID.x] = own;
}
