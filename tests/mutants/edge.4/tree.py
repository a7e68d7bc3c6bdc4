"""symptom: waits too often

A tree in shared memory, with a barrier for each of its seven levels, twice.
"""

SHADER = """
layout(local_size_x = 128) in;
shared float peaks[128], sums[128];
void main() {
    uint row = gl_WorkGroupID.x, own = gl_LocalInvocationID.x;
    float peak = -3.4e38, sum = 0.0;
    for (uint i = own; i < columns; i += 128) {
        float value = load_x(row, i), higher = max(peak, value);
        sum = sum * exp(peak - higher) + exp(value - higher);
        peak = higher;
    }
    peaks[own] = peak;
    sums[own] = sum;
    for (uint far = 64; far > 0; far /= 2) {
        barrier();
        if (own < far) {
            float higher = max(peaks[own], peaks[own + far]);
            sums[own] = sums[own] * exp(peaks[own] - higher) + sums[own + far] * exp(peaks[own + far] - higher);
            peaks[own] = higher;
        }
    }
    barrier();
    for (uint i = own; i < columns; i += 128) store_y(row, i, exp(load_x(row, i) - peaks[0]) / sums[0]);
}
"""


def answer():
    return SHADER
