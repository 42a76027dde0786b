#version 450
// c = a @ b for row-major float matrices (m by k, k by n), in tiles of 16 by 16 through shared memory.
layout(local_size_x = 16, local_size_y = 16) in;
layout(set = 0, binding = 0) readonly buffer A { float a[]; };
layout(set = 0, binding = 1) readonly buffer B { float b[]; };
layout(set = 0, binding = 2) writeonly buffer C { float c[]; };
layout(push_constant) uniform P { uint m, n, k; };
shared float ta[16][16], tb[16][16];
void main() {
    uint row = gl_GlobalInvocationID.y, column = gl_GlobalInvocationID.x;
    uint i = gl_LocalInvocationID.y, j = gl_LocalInvocationID.x;
    float sum = 0.0;
    for (uint t = 0; t < k; t += 16) {
        ta[i][j] = row < m && t + j < k ? a[row * k + t + j] : 0.0;
        tb[i][j] = t + i < k && column < n ? b[(t + i) * n + column] : 0.0;
        barrier();
        for (uint s = 0; s < 16; s++) sum += ta[i][s] * tb[s][j];
        barrier();
    }
    if (row < m && column < n) c[row * n + column] = sum;
}
