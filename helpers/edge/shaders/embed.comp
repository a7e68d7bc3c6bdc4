#version 450
// y = the row of a token in a table, plus the row of its position in another where POSITIONS is 1.
// Token and length are read when the kernel runs, so that one recording serves every token.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint POSITIONS = 1;

layout(set = 0, binding = 0) readonly buffer Table { float table[]; };    // (vocabulary, width)
layout(set = 0, binding = 1) readonly buffer Places { float places[]; };  // (context, width)
layout(set = 0, binding = 2) readonly buffer Token { uint token[]; };
layout(set = 0, binding = 3) readonly buffer Length { uint keys_here[]; };  // tokens with this one
layout(set = 0, binding = 4) writeonly buffer Y { float y[]; };
layout(push_constant) uniform Sizes { uint width; };

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i >= width) return;
    float value = table[token[0] * width + i];
    if (POSITIONS == 1) value += places[(keys_here[0] - 1) * width + i];
    y[i] = value;
}
