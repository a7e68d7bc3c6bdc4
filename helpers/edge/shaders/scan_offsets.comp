#version 450
// Adds to each block of `block` values what all blocks before it sum to.
layout(local_size_x = 128, local_size_x_id = 0) in;

layout(set = 0, binding = 0) readonly buffer Sums { float sums[]; };  // inclusive, of whole blocks
layout(set = 0, binding = 1) buffer Y { float y[]; };
layout(push_constant) uniform Arguments { uint n; uint block; };

void main() {
    uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    uint i = group * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    if (i < n && i >= block) y[i] += sums[i / block - 1];
}
