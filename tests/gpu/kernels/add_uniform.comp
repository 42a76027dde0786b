#version 450
// Scalars in a uniform buffer after the storage buffers, as TVM has them.
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) buffer Y { int y[]; };
layout(set = 0, binding = 1) uniform Scalars { int a; uint n; };

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < n) y[i] = y[i] * 10 + a;
}
