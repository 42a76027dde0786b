#version 450
// out[b] = the sum of x[b], padding included.
layout(local_size_x = 64) in;
layout(set = 0, binding = 0, std430) readonly buffer X { float x[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { float y[]; };
layout(push_constant) uniform P { uint batch; uint seq; };
void main() {
    uint b = gl_GlobalInvocationID.x;
    if (b >= batch) return;
    float sum = 0.0;
    for (uint s = 0; s < seq; s++) sum += x[b * seq + s];
    y[b] = sum;
}
