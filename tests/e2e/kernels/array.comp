#version 450
// y[i] = the sum over an array of three descriptors, each weighted by its place.
layout(local_size_x = 1) in;
layout(set = 0, binding = 0, std430) readonly buffer X { uint x[]; } parts[3];
layout(set = 0, binding = 3, std430) writeonly buffer Y { uint y[]; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    y[i] = parts[0].x[i] + 10 * parts[1].x[i] + 100 * parts[2].x[i];
}
