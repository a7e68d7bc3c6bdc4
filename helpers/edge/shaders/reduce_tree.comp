#version 450
// One value from n fp32 values: each workgroup leaves one partial value, and a second dispatch over
// those ends it. Invocations stride over x, then half of them at a time fold the other half in.
layout(local_size_x = 128, local_size_x_id = 0) in;
layout(constant_id = 0) const uint GROUP = 128;    // a power of two
layout(constant_id = 1) const uint OPERATION = 0;  // 0: sum, 1: maximum

layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) writeonly buffer Partials { float partials[]; };
layout(push_constant) uniform Arguments { uint n; };

shared float parts[GROUP];

float both(float a, float b) { return OPERATION == 0 ? a + b : max(a, b); }

void main() {
    uint lane = gl_LocalInvocationID.x;
    float own = OPERATION == 0 ? 0.0 : uintBitsToFloat(0xFF800000u);
    for (uint i = gl_GlobalInvocationID.x; i < n; i += gl_NumWorkGroups.x * GROUP) own = both(own, x[i]);
    parts[lane] = own;
    barrier();
    for (uint half_group = GROUP / 2; half_group > 0; half_group /= 2) {
        if (lane < half_group) parts[lane] = both(parts[lane], parts[lane + half_group]);
        barrier();
    }
    if (lane == 0) partials[gl_WorkGroupID.x] = parts[0];
}
