#version 450
layout(local_size_x = 64) in;
layout(push_constant) uniform Constants { int k; };
layout(set = 0, binding = 0) readonly buffer Source { int source[]; };
layout(set = 0, binding = 1) writeonly buffer Target { int target[]; };

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < target.length()) target[i] = source[i] * k;
}
