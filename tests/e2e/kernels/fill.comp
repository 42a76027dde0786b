#version 450
// Writes, and reads nothing.
layout(local_size_x = 64) in;
layout(set = 0, binding = 0, std430) writeonly buffer Y { uint y[]; };
layout(push_constant) uniform P { uint k; };
void main() { y[gl_GlobalInvocationID.x] = k + gl_GlobalInvocationID.x; }
