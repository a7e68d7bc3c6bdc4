#version 450
#extension GL_KHR_shader_subgroup_arithmetic : require
// y = x / sqrt(mean(x²) + epsilon) * weight for each row. One workgroup a row.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 0) const uint GROUP = 64;

layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) readonly buffer Weight { float weight[]; };
layout(set = 0, binding = 2) writeonly buffer Y { float y[]; };
layout(push_constant) uniform Arguments { uint rows; uint columns; float epsilon; };

shared float squares[GROUP];

void main() {
    uint row = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    if (row >= rows) return;  // the same for the whole workgroup
    uint start = row * columns;
    float sum = 0.0;
    for (uint i = gl_LocalInvocationID.x; i < columns; i += GROUP) sum += x[start + i] * x[start + i];
    sum = subgroupAdd(sum);
    if (subgroupElect()) squares[gl_SubgroupID] = sum;
    barrier();
    sum = 0.0;
    for (uint s = 0; s < gl_NumSubgroups; s++) sum += squares[s];
    float scale = inversesqrt(sum / float(columns) + epsilon);
    for (uint i = gl_LocalInvocationID.x; i < columns; i += GROUP) y[start + i] = x[start + i] * scale * weight[i];
}
