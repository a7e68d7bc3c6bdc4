#version 450
#extension GL_KHR_shader_subgroup_arithmetic : require
// Softmax of each row in two passes over it instead of three: an invocation keeps the largest value
// so far and the sum of exponentials relative to it, and corrects the sum when a larger value comes
// (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018). One workgroup a row.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 0) const uint GROUP = 64;

layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { float y[]; };
layout(push_constant) uniform Arguments { uint rows; uint columns; };

const float LOWEST = -3.4028234e38;  // finite, so that nothing here depends on how infinities behave
shared float peaks[GROUP];
shared float sums[GROUP];

void main() {
    uint row = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    if (row >= rows) return;  // the same for the whole workgroup
    uint start = row * columns;
    float peak = LOWEST, sum = 0.0;
    for (uint i = gl_LocalInvocationID.x; i < columns; i += GROUP) {
        float value = x[start + i];
        if (value > peak) {
            sum *= exp(peak - value);
            peak = value;
        }
        sum += exp(value - peak);
    }
    float high = subgroupMax(peak);
    sum = subgroupAdd(sum * exp(peak - high));
    if (subgroupElect()) {
        peaks[gl_SubgroupID] = high;
        sums[gl_SubgroupID] = sum;
    }
    barrier();
    peak = LOWEST;
    for (uint s = 0; s < gl_NumSubgroups; s++) peak = max(peak, peaks[s]);
    sum = 0.0;
    for (uint s = 0; s < gl_NumSubgroups; s++) sum += sums[s] * exp(peaks[s] - peak);
    for (uint i = gl_LocalInvocationID.x; i < columns; i += GROUP) y[start + i] = exp(x[start + i] - peak) / sum;
}
