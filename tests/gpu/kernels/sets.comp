#version 450
// Sets with holes, a uniform block, and an array of descriptors.
layout(local_size_x = 64) in;
layout(set = 0, binding = 1) readonly buffer Source { int source[]; };
layout(set = 2, binding = 0) uniform Scalars { int k; };
layout(set = 3, binding = 5) writeonly buffer Target { int target[]; } targets[2];

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < source.length()) {
        targets[0].target[i] = source[i] + k;
        targets[1].target[i] = source[i] * k;
    }
}
