#version 450
// How steep the brightness is at each pixel, by Sobel's operator.
layout(local_size_x = 16, local_size_y = 16) in;
layout(set = 0, binding = 0) readonly buffer Source { vec4 data[]; } source;
layout(set = 0, binding = 1) writeonly buffer Edges { float data[]; } edges;
layout(push_constant) uniform Scalars { ivec2 size; float gain; };

float brightness(ivec2 at) {
    at = clamp(at, ivec2(0), size - 1);
    return dot(source.data[at.y * size.x + at.x].rgb, vec3(0.2126, 0.7152, 0.0722));
}

void main() {
    ivec2 at = ivec2(gl_GlobalInvocationID.xy);
    if (any(greaterThanEqual(at, size))) return;
    float b[9];
    for (int i = 0; i < 9; i++) b[i] = brightness(at + ivec2(i % 3, i / 3) - 1);
    float x = b[2] + 2.0 * b[5] + b[8] - b[0] - 2.0 * b[3] - b[6];
    float y = b[6] + 2.0 * b[7] + b[8] - b[0] - 2.0 * b[1] - b[2];
    edges.data[at.y * size.x + at.x] = clamp(gain * length(vec2(x, y)), 0.0, 1.0);
}
