#version 450
// y = 31 * y + x + k: the order in which such steps take effect can be read off the result.
layout(local_size_x = 64) in;
layout(set = 0, binding = 0, std430) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1, std430) buffer Y { uint y[]; };
layout(push_constant) uniform P { uint n; uint k; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < n) y[i] = 31 * y[i] + x[i] + k;
}
