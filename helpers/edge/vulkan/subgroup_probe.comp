#version 450
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_ballot : require
// Each invocation writes the size that it is told, and how many it finds itself with.
layout(local_size_x = 128) in;

layout(set = 0, binding = 0) writeonly buffer Seen { uvec2 seen[]; };

void main() {
    seen[gl_LocalInvocationIndex] = uvec2(gl_SubgroupSize, subgroupBallotBitCount(subgroupBallot(true)));
}
