#version 450
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_EXT_control_flow_attributes : require
// Attention of new tokens: each of `heads` queries of a token over its n keys in a cache, which end with its
// own: those behind it are never read. HEADS queries share a key head, and a workgroup serves them together, so
// that every key and value is read once a token. Its subgroups take the keys in turns, lanes lie along the head's
// elements, and each subgroup keeps the largest score, the sum and the weighted values so far; at the end these
// are merged.
layout(local_size_x = 32, local_size_x_id = 0) in;
layout(constant_id = 1) const uint HEADS = 1;      // queries of a key head
layout(constant_id = 2) const uint SIZE = 64;      // elements of a head
layout(constant_id = 3) const uint PIECES = 16;    // elements of a lane: SIZE / subgroup size, at least
layout(constant_id = 4) const uint SUBGROUPS = 8;  // of a workgroup, at most

layout(set = 0, binding = 0) readonly buffer Q { float q[]; };            // (tokens, key heads, HEADS, SIZE)
layout(set = 0, binding = 1) readonly buffer Keys { float keys[]; };      // (capacity, key heads, SIZE)
layout(set = 0, binding = 2) readonly buffer Values { float values[]; };  // (capacity, key heads, SIZE)
layout(set = 0, binding = 3) readonly buffer Length { uint keys_here[]; };
layout(set = 0, binding = 4) writeonly buffer Y { float y[]; };           // (tokens, key heads, HEADS, SIZE)
layout(push_constant) uniform Arguments { uint capacity; float scale; };

const float LOWEST = -3.4028234e38;
shared float peaks[SUBGROUPS][HEADS];
shared float sums[SUBGROUPS][HEADS];
shared float parts[SUBGROUPS][HEADS][SIZE];

void main() {
    uint key_head = gl_WorkGroupID.x, key_heads = gl_NumWorkGroups.x, lane = gl_SubgroupInvocationID;
    uint token = gl_WorkGroupID.y, n = min(keys_here[0], capacity) - (gl_NumWorkGroups.y - 1 - token);
    uint here = (token * key_heads + key_head) * HEADS * SIZE;
    float query[HEADS * PIECES], part[HEADS * PIECES], peak[HEADS], sum[HEADS];
    [[unroll]] for (uint h = 0; h < HEADS; h++) {
        peak[h] = LOWEST;
        sum[h] = 0.0;
        [[unroll]] for (uint p = 0; p < PIECES; p++) {
            uint d = p * gl_SubgroupSize + lane;
            query[h * PIECES + p] = d < SIZE ? scale * q[here + h * SIZE + d] : 0.0;
            part[h * PIECES + p] = 0.0;
        }
    }
    for (uint key = gl_SubgroupID; key < n; key += gl_NumSubgroups) {
        uint start = (key * key_heads + key_head) * SIZE;
        float score[HEADS], weight[HEADS];
        [[unroll]] for (uint h = 0; h < HEADS; h++) score[h] = 0.0;
        [[unroll]] for (uint p = 0; p < PIECES; p++) {
            uint d = p * gl_SubgroupSize + lane;
            float element = d < SIZE ? keys[start + d] : 0.0;
            [[unroll]] for (uint h = 0; h < HEADS; h++) score[h] += query[h * PIECES + p] * element;
        }
        [[unroll]] for (uint h = 0; h < HEADS; h++) {
            score[h] = subgroupAdd(score[h]);
            float high = max(peak[h], score[h]), keep = exp(peak[h] - high);
            weight[h] = exp(score[h] - high);
            peak[h] = high;
            sum[h] = sum[h] * keep + weight[h];
            [[unroll]] for (uint p = 0; p < PIECES; p++) part[h * PIECES + p] *= keep;
        }
        [[unroll]] for (uint p = 0; p < PIECES; p++) {
            uint d = p * gl_SubgroupSize + lane;
            float element = d < SIZE ? values[start + d] : 0.0;
            [[unroll]] for (uint h = 0; h < HEADS; h++) part[h * PIECES + p] += weight[h] * element;
        }
    }
    [[unroll]] for (uint h = 0; h < HEADS; h++) {
        if (subgroupElect()) {
            peaks[gl_SubgroupID][h] = peak[h];
            sums[gl_SubgroupID][h] = sum[h];
        }
        [[unroll]] for (uint p = 0; p < PIECES; p++) {
            uint d = p * gl_SubgroupSize + lane;
            if (d < SIZE) parts[gl_SubgroupID][h][d] = part[h * PIECES + p];
        }
    }
    barrier();
    for (uint e = gl_LocalInvocationID.x; e < HEADS * SIZE; e += gl_WorkGroupSize.x) {
        uint h = e / SIZE, d = e % SIZE;
        float high = LOWEST, total = 0.0, whole = 0.0;
        for (uint s = 0; s < gl_NumSubgroups; s++) high = max(high, peaks[s][h]);
        for (uint s = 0; s < gl_NumSubgroups; s++) {
            float keep = exp(peaks[s][h] - high);
            total += keep * sums[s][h];
            whole += keep * parts[s][h][d];
        }
        y[here + e] = whole / total;
    }
}
