"""symptom: out of bounds

Each invocation stores a whole number of steps.
"""

SHADER = """
layout(local_size_x = 128) in;
const float LOWEST = -3.4e38;
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
    for (uint i = gl_LocalInvocationID.x; i < (columns + 127) / 128 * 128; i += 128) {
        float share = exp(load_x(row, min(i, columns - 1)) - peak) / sum;
        store_y(row, i, share);
    }
}
"""


def answer():
    return SHADER
