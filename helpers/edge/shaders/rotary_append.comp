#version 450
// Queries, keys and values of new tokens, projected side by side: the queries go to q, keys and values
// to the end of their caches. Where ROTARY is 1, each pair (i, i + SIZE / 2) of a query or key is turned
// by the angle of its position. Cosines and sines come from a table that the host computed: a device's own
// may be off by 2^-11 (Vulkan specification, "Precision of Individual Operations").
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint ROTARY = 1;

layout(set = 0, binding = 0) readonly buffer Turns { float turns[]; };          // (capacity, size / 2, 2)
layout(set = 0, binding = 1) readonly buffer Projected { float projected[]; };  // (tokens, heads + 2 key heads, size)
layout(set = 0, binding = 2) readonly buffer Length { uint keys_here[]; };      // tokens with these
layout(set = 0, binding = 3) writeonly buffer Q { float q[]; };                 // (tokens, heads, size)
layout(set = 0, binding = 4) writeonly buffer Keys { float keys[]; };           // (capacity, key heads, size)
layout(set = 0, binding = 5) writeonly buffer Values { float values[]; };       // (capacity, key heads, size)
layout(push_constant) uniform Sizes { uint heads; uint key_heads; uint size; uint capacity; uint tokens; };

void main() {
    uint e = gl_GlobalInvocationID.x, once = (heads + 2 * key_heads) * size, t = e / once, at_token = e % once;
    uint head = at_token / size, d = at_token % size;
    if (t >= tokens) return;
    uint place = min(keys_here[0], capacity) - tokens + t;
    float value = projected[e];
    if (ROTARY == 1 && head < heads + key_heads) {
        uint half_size = size / 2, at = 2 * (place * half_size + d % half_size);
        float along = value * turns[at];
        value = d < half_size ? along - projected[e + half_size] * turns[at + 1]
                              : along + projected[e - half_size] * turns[at + 1];
    }
    uint start = place * key_heads * size;
    if (head < heads) {
        q[t * heads * size + at_token] = value;
    } else if (head < heads + key_heads) {
        keys[start + at_token - heads * size] = value;
    } else {
        values[start + at_token - (heads + key_heads) * size] = value;
    }
}
