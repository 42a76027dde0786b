#version 450
// One pass of a separable blur: each pixel becomes a weighted mean of its neighbours along `direction`.
// Two passes, (1, 0) and (0, 1), make the whole of it: 2 * (2 * radius + 1) reads a pixel, not (2 * radius + 1) ^ 2.
layout(local_size_x = 16, local_size_y = 16) in;
layout(set = 0, binding = 0) readonly buffer Source { vec4 data[]; } source;
layout(set = 0, binding = 1) readonly buffer Weights { float data[]; } weights;
layout(set = 0, binding = 2) writeonly buffer Target { vec4 data[]; } target;
layout(push_constant) uniform Scalars { ivec2 size; ivec2 direction; int radius; };

void main() {
    ivec2 at = ivec2(gl_GlobalInvocationID.xy);
    if (any(greaterThanEqual(at, size))) return;
    vec4 sum = vec4(0);
    for (int k = -radius; k <= radius; k++) {
        ivec2 from = clamp(at + k * direction, ivec2(0), size - 1);  // the edge pixels go on outside
        sum += weights.data[abs(k)] * source.data[from.y * size.x + from.x];
    }
    target.data[at.y * size.x + at.x] = sum;
}
