"""symptom: not a number

Lanes without a value hold minus infinity, and take it from itself.
"""

SHADER = """
layout(local_size_x = 128) in;
#define LOWEST uintBitsToFloat(0xff800000u)
shared float peaks[128], sums[128];
void main() {
    uint row = gl_WorkGroupID.x;
    float peak = LOWEST, sum = 0.0;
    for (uint i = gl_LocalInvocationID.x; i < columns; i += 128) {
        float value = load_x(row, i), higher = max(peak, value);
        sum = sum * exp(peak - higher) + exp(value - higher);
        peak = higher;
    }
    float high = subgroupMax(peak);
    sum = subgroupAdd(sum * exp(peak - high));
    if (subgroupElect()) {
        peaks[gl_SubgroupID] = high;
        sums[gl_SubgroupID] = sum;
    }
    barrier();
    peak = LOWEST;
    sum = 0.0;
    for (uint s = 0; s < gl_NumSubgroups; s++) peak = max(peak, peaks[s]);
    for (uint s = 0; s < gl_NumSubgroups; s++) sum += sums[s] * exp(peaks[s] - peak);
    for (uint i = gl_LocalInvocationID.x; i < columns; i += 128) store_y(row, i, exp(load_x(row, i) - peak) / sum);
}
"""


def answer():
    return SHADER
