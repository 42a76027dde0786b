#version 450
#extension GL_EXT_control_flow_attributes : require
// The last layer norm, the mean of a sample's rows up to its length, and that vector's normalization: a work group for
// each sample. LANES invocations read a row together, ROWS rows at once, so each value is read once.
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 256;  // LANES * ROWS
layout(constant_id = 1) const uint LANES = 32;
layout(constant_id = 2) const uint ROWS = 8;
layout(constant_id = 3) const uint QUARTERS = 3;   // of 16 bytes, that an invocation has of a row: width / 4 / LANES

layout(set = 0, binding = 0) readonly buffer Hidden { vec4 data[]; } hidden;  // [rows, width / 4]
layout(set = 0, binding = 1) readonly buffer Gain { vec4 data[]; } gain;
layout(set = 0, binding = 2) readonly buffer Bias { vec4 data[]; } bias;
layout(set = 0, binding = 3) readonly buffer Lengths { int data[]; } lengths;
layout(set = 0, binding = 4) writeonly buffer Embedding { vec4 data[]; } embedding;  // [samples, width / 4]
layout(push_constant) uniform Scalars { uint seq; float epsilon; };

shared float partial[THREADS];
shared vec4 sums[THREADS * QUARTERS];

float dot_ones(vec4 v) { return v.x + v.y + v.z + v.w; }

// The sum over the LANES invocations that share a row; LANES is a power of two.
float across(float value, uint lane) {
    barrier();
    partial[lane] = value;
    for (uint half_of = LANES / 2; half_of > 0; half_of /= 2) {
        barrier();
        if (lane % LANES < half_of) partial[lane] += partial[lane + half_of];
    }
    barrier();
    return partial[lane / LANES * LANES];
}

void main() {
    const uint lane = gl_LocalInvocationIndex, column = lane % LANES, row = lane / LANES;
    const uint width4 = LANES * QUARTERS, width = 4 * width4, place = gl_WorkGroupID.x;
    const uint length = clamp(lengths.data[place], 0, int(seq));

    vec4 sum[QUARTERS];
    [[unroll]] for (uint i = 0; i < QUARTERS; i++) sum[i] = vec4(0);
    for (uint first = 0; first < length; first += ROWS) {
        const bool counts = first + row < length;
        vec4 x[QUARTERS];
        float all = 0;
        [[unroll]] for (uint i = 0; i < QUARTERS; i++) {
            x[i] = hidden.data[(place * seq + min(first + row, length - 1)) * width4 + i * LANES + column];
            all += dot_ones(x[i]);
        }
        const float mean = across(all, lane) / width;
        all = 0;
        [[unroll]] for (uint i = 0; i < QUARTERS; i++) {
            x[i] -= mean;
            all += dot(x[i], x[i]);
        }
        const float deviation = inversesqrt(across(all, lane) / width + epsilon);
        if (counts) [[unroll]] for (uint i = 0; i < QUARTERS; i++) sum[i] += x[i] * deviation;
    }

    [[unroll]] for (uint i = 0; i < QUARTERS; i++) sums[row * width4 + i * LANES + column] = sum[i];
    barrier();
    // The first LANES invocations go on; the others do as they do, for the barriers' sake.
    vec4 mean[QUARTERS];
    float all = 0;
    [[unroll]] for (uint i = 0; i < QUARTERS; i++) {
        const uint at = i * LANES + column;
        vec4 value = vec4(0);
        for (uint j = 0; j < ROWS; j++) value += sums[j * width4 + at];
        mean[i] = length > 0 ? value / length * gain.data[at] + bias.data[at] : vec4(0);
        all += dot(mean[i], mean[i]);
    }
    const float norm = max(sqrt(across(all, lane)), 1e-12);  // as torch.nn.functional.normalize
    if (row == 0) [[unroll]] for (uint i = 0; i < QUARTERS; i++) embedding.data[place * width4 + i * LANES + column] = mean[i] / norm;
}
