#version 450
// y[i] += k * x[i]: the smallest useful kernel; the benchmark measures the cost around it.
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) buffer Y { float y[]; };
layout(push_constant) uniform P { uint n; float k; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < n) y[i] = y[i] + k * x[i];
}
