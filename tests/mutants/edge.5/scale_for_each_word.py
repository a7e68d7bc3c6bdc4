"""symptom: too much traffic

The scale is loaded again for each word of its group.
"""

SHADER = """
layout(local_size_x = 64) in;
void main() {
    uint row = gl_GlobalInvocationID.x;
    if (row >= rows) return;
    float sum = 0.0;
    for (uint group = 0; group * 32 < k; group++) {
        for (uint w = 0; w < 4 && group * 32 + w * 8 < k; w++) {
            vec2 scale = unpackHalf2x16(load_scale(group, row));
            uint word = load_word(group * 4 + w, row), first = group * 32 + w * 8;
            for (uint j = 0; j < 8 && first + j < k; j++) {
                float q = float(word >> (4 * j) & 15u);
                sum += scale.x * (q - scale.y) * load_x(first + j);
            }
        }
    }
    store_y(row, sum);
}
"""


def answer():
    return SHADER
