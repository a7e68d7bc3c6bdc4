"""symptom: too much traffic

The maximum, then the sum, then the shares: each value is loaded three times.
"""

SHADER = """
layout(local_size_x = 128) in;
const float LOWEST = -3.4e38;
shared float peaks[128], sums[128];
void main() {
    uint row = gl_WorkGroupID.x;
    float peak = LOWEST, sum = 0.0;
    for (uint i = gl_LocalInvocationID.x; i < columns; i += 128) {
        peak = max(peak, load_x(row, i));
    }
    float high = subgroupMax(peak);
    for (uint i = gl_LocalInvocationID.x; i < columns; i += 128) sum += exp(load_x(row, i) - high);
    sum = subgroupAdd(sum);
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
