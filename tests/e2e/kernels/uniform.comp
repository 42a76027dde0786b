#version 450
// y[i] = scale * i + offset[i % 3] + steps[i % 2].x, with the numbers in a uniform block.
layout(local_size_x = 16) in;
layout(set = 0, binding = 0, std140) uniform U { float scale; vec3 offset; int steps[2]; } u;
layout(set = 0, binding = 1, std430) writeonly buffer Y { float y[]; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    y[i] = u.scale * i + u.offset[i % 3] + u.steps[i % 2];
}
