"""symptom: not a number

exp of the values as they are.
"""

SHADER = """
layout(local_size_x = 128) in;
shared float sums[128];
void main() {
    uint row = gl_WorkGroupID.x;
    float sum = 0.0;
    for (uint i = gl_LocalInvocationID.x; i < columns; i += 128) sum += exp(load_x(row, i));
    sum = subgroupAdd(sum);
    if (subgroupElect()) sums[gl_SubgroupID] = sum;
    barrier();
    sum = 0.0;
    for (uint s = 0; s < gl_NumSubgroups; s++) sum += sums[s];
    for (uint i = gl_LocalInvocationID.x; i < columns; i += 128) store_y(row, i, exp(load_x(row, i)) / sum);
}
"""


def answer():
    return SHADER
