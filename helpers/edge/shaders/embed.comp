#version 450
// y = the rows of tokens in a table, plus the rows of their positions in another where POSITIONS is 1.
// Tokens and length are read when the kernel runs, so that one recording serves all of as many tokens.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint POSITIONS = 1;

layout(set = 0, binding = 0) readonly buffer Table { float table[]; };    // (vocabulary, width)
layout(set = 0, binding = 1) readonly buffer Places { float places[]; };  // (context, width)
layout(set = 0, binding = 2) readonly buffer Token { uint token[]; };
layout(set = 0, binding = 3) readonly buffer Length { uint keys_here[]; };  // tokens with these
layout(set = 0, binding = 4) writeonly buffer Y { float y[]; };  // (tokens, width)
layout(push_constant) uniform Sizes { uint width; uint tokens; };

void main() {
    uint e = gl_GlobalInvocationID.x, t = e / width, i = e % width;
    if (t >= tokens) return;
    float value = table[token[t] * width + i];
    if (POSITIONS == 1) value += places[(keys_here[0] - tokens + t) * width + i];
    y[e] = value;
}
