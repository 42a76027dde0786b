#version 450
// out[b][s][j] = x[b][s] * w[j] + lengths[b]
layout(local_size_x = 64) in;
layout(set = 0, binding = 0, std430) readonly buffer X { float x[]; };
layout(set = 0, binding = 1, std430) readonly buffer L { int lengths[]; };
layout(set = 0, binding = 2, std430) readonly buffer W { float w[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y { float y[]; };
layout(push_constant) uniform P { uint rows; uint seq; uint columns; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i >= rows * columns) return;
    uint row = i / columns;
    y[i] = x[row] * w[i % columns] + float(lengths[row / seq]);
}
