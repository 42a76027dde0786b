#version 450
layout(local_size_x = 64) in;
layout(push_constant) uniform Constants { int k; };
layout(set = 0, binding = 0) buffer Data { int data[]; };

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < data.length()) data[i] += k;
}
