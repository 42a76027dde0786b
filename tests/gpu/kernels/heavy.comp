#version 450
// Takes long: for a huge grid, since lavapipe 22.3 leaves loops after 65,535 iterations of an invocation.
layout(local_size_x = 1024) in;
layout(set = 0, binding = 0) buffer Data { uint data[]; };

void main() {
    uint v = gl_GlobalInvocationID.x;
    for (int i = 0; i < 64; ++i) v = v * 1664525u + 1013904223u;
    if (v == 12345u) atomicAdd(data[1], 1u);
    if (gl_GlobalInvocationID == uvec3(0)) data[0] += 1;
}
